// axios-retry: an interceptor that repeats the request.
const axios = require("axios");
const { default: axiosRetry } = require("axios-retry");

const [url, key, fault, timeout] = process.argv.slice(2);
axiosRetry(axios, {
  retries: 20,
  shouldResetTimeout: true,
  retryDelay: (count, error) => axiosRetry.exponentialDelay(Math.min(count, 4), error),
  retryCondition: ({ response }) => !response || response.status === 409 || response.status >= 500,
});
axios
  .post(url, { item: "a book" }, {
    headers: { "Idempotency-Key": key, "X-Fault": fault },
    timeout: 1000 * timeout,
    responseType: "arraybuffer",
  })
  .then((answer) => process.stdout.write(answer.data));
