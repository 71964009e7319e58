"""urllib3's Retry, which requests and many libraries use."""

import sys

import urllib3

url, key, fault, timeout = sys.argv[1:]
retry = urllib3.Retry(20, allowed_methods=["POST"], status_forcelist=[409, 502, 503, 504], backoff_factor=0.1)
headers = {"Idempotency-Key": key, "X-Fault": fault}
pool = urllib3.PoolManager(retries=retry, timeout=float(timeout))
sys.stdout.buffer.write(pool.request("POST", url, json={"item": "a book"}, headers=headers).data)
