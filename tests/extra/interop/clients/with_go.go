// net/http repeats a request by itself if a connection that was used before ends without an answer, and the request
// has an Idempotency-Key.
package main

import (
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
)

func main() {
	address, key, fault := os.Args[1], os.Args[2], os.Args[3]
	base, err := url.Parse(address)
	if err != nil {
		log.Fatal(err)
	}
	first, err := http.Get(base.ResolveReference(&url.URL{Path: "/read"}).String())
	if err != nil {
		log.Fatal(err)
	}
	io.Copy(io.Discard, first.Body)
	first.Body.Close() // the connection can be used again
	request, err := http.NewRequest("POST", address, strings.NewReader(`{"item": "a book"}`))
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	request.Header.Set("X-Fault", fault)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	io.Copy(os.Stdout, answer.Body)
}
