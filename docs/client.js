// django-idempotency/client.js, revision 2
// A client that retries, with an outbox in the browser's storage: see clients.md.

const GIVE_UP_AFTER = 600; // seconds: longer than the server's longest lease
const TIMEOUT = 30; // seconds for one attempt
const RETRIED = new Set([408, 423, 425, 429]); // and every 5xx
const LOGIN = new Set([401, 403]); // these say nothing about the order, nor does a redirect
const CODES = { // by status and `code`; a 409 from the business logic has another code, or none
  "409 in-progress": "retry",
  "429 in-progress": "retry",
  "409 outcome-unknown": "retry",
  "503 busy": "retry",
  "503 paused": "retry",
  "403 unidentified-caller": "log-in",
  "403 changing-credential": "log-in",
  "409 response-not-stored": "look-up",
  "403 replay-refused": "look-up",
  "409 key-too-old": "look-up",
  "409 already-used": "look-up",
  "422 already-used": "look-up",
  "400 missing-key": "final",
  "400 invalid-key": "final",
  "411 length-required": "final",
  "413 body-too-large": "final",
};

class Refused extends Error {} // the final answer is no
class Processed extends Error {} // the order was, or may have been, processed: look it up, do not order again
class NotConfirmed extends Error {} // no final answer yet: keep the key, and try again later

// A UUID of version 7, which contains the time at which it was made.
function newKey() {
  const time = Date.now().toString(16).padStart(12, "0");
  return `${time.slice(0, 8)}-${time.slice(8)}-7${crypto.randomUUID().slice(15)}`;
}

// Pass `sent` as true if an earlier call may have sent this key.
async function placeOrder(url, key, order, giveUpAfter = GIVE_UP_AFTER, sent = false) {
  const end = Date.now() + 1000 * giveUpAfter;
  const headers = { "Content-Type": "application/json", "Idempotency-Key": `"${key}"` };
  const request = { method: "POST", headers, body: JSON.stringify(order), redirect: "manual" };
  for (;;) {
    let answer = await ask(end, url, request);
    sent ||= answer.repeated;
    if (answer.status === 202 && answer.location) {
      let page = answer;
      while (page.ok && page.fields.status === "in_progress") {
        await wait(page, 1, end);
        page = await ask(end, answer.location, {});
      }
      if (answer.fields.code === "in-progress") {
        sent = true;
        continue;
      }
      if (page.fields.status === "failed") throw new Refused(`${page.status}: ${page.text}`);
      // A 202 from the view itself is final. Its page says how the work ended, unless it can't be read.
      if (page.ok || meaning(page) === "log-in") answer = page;
    }
    if (meaning(answer) === "log-in") throw new NotConfirmed(`${answer.status}`);
    // A final code is a refusal before the key is read: it says nothing about an earlier attempt.
    const told = known(answer);
    if (told === "look-up" || (sent && told === "final")) throw new Processed(answer.location ?? "");
    if (!answer.ok) throw new Refused(`${answer.status}: ${answer.text}`);
    return answer.fields;
  }
}

// Repeat the request until an answer does not call for a retry. `repeated` says whether it was sent more than once.
async function ask(end, url, request) {
  for (let pause = 0.5, repeated = false; ; pause = Math.min(2 * pause, 30), repeated = true) {
    let answer = null;
    try {
      answer = await read(await fetch(url, { ...request, signal: AbortSignal.timeout(1000 * TIMEOUT) }));
    } catch {
      // no answer
    }
    if (answer && meaning(answer) !== "retry") return { ...answer, repeated };
    await wait(answer, pause, end);
  }
}

// What the answer says about the order, by its code if that is a known one, or else by its status.
function meaning(answer) {
  const { ok, status } = answer;
  if (known(answer)) return known(answer);
  if (RETRIED.has(status) || status >= 500) return "retry";
  return LOGIN.has(status) || (!ok && status < 400) ? "log-in" : "final";
}

function known({ status, fields }) {
  return CODES[`${status} ${fields.code}`];
}

async function read(response) {
  const text = await response.text();
  const location = response.headers.get("Location");
  let fields = null;
  try {
    fields = JSON.parse(text);
  } catch {
    // not JSON
  }
  return {
    ok: response.ok,
    status: response.status,
    retryAfter: Number(response.headers.get("Retry-After")) || 0,
    location: location && new URL(location, response.url).href,
    text,
    fields: fields ?? {},
  };
}

async function wait(answer, pause, end) {
  const milliseconds = 1000 * Math.max(pause, answer?.retryAfter ?? 0) * (1 + Math.random() / 4);
  if (Date.now() + milliseconds > end) throw new NotConfirmed("There was no final answer in time.");
  await new Promise((resolve) => setTimeout(resolve, milliseconds));
}

// Orders that are not confirmed yet, with their keys: one for each form.
class Outbox {
  constructor(url, name = "outbox", storage = localStorage) {
    Object.assign(this, { url, name, storage });
  }

  entries() {
    return JSON.parse(this.storage.getItem(this.name) ?? "{}");
  }

  keep(form, entry) {
    this.storage.setItem(this.name, JSON.stringify({ ...this.entries(), [form]: entry }));
  }

  // The user has clicked. A second click with the same data sends the same key.
  submit(form, order, giveUpAfter) {
    const entry = this.entries()[form] ?? { key: newKey(), order };
    if (JSON.stringify(entry.order) !== JSON.stringify(order)) {
      return Promise.reject(new NotConfirmed("The order before this one is not confirmed yet."));
    }
    this.keep(form, entry);
    return this.deliver(form, entry, giveUpAfter);
  }

  // The page was loaded again. Returns a promise for each form whose order is not confirmed.
  resume(giveUpAfter) {
    return Object.entries(this.entries()).map(([form, entry]) => this.deliver(form, entry, giveUpAfter));
  }

  async deliver(form, { key, order, sent }, giveUpAfter) {
    this.keep(form, { key, order, sent: true }); // before the request is sent: the page may be closed at any time
    const answer = await placeOrder(this.url, key, order, giveUpAfter, sent).catch((error) => error);
    const final = !(answer instanceof Error) || answer instanceof Refused || answer instanceof Processed;
    if (final && this.entries()[form]?.key === key) this.keep(form, undefined);
    if (answer instanceof Error) throw answer;
    return answer;
  }
}
