// Updates a page: fetches it again after a change and replaces the parts that differ.
// Without this script, reload the page.
const PAUSE = 150; // milliseconds between two fetches, so that a busy sandbox has time for its calls
const main = document.querySelector("main");
const state = document.querySelector("#live");
let fetching = false;
let again = false;

// A part with typed text is not replaced.
const inUse = (part) =>
  [...part.querySelectorAll("input")].some(
    (input) => input === document.activeElement || input.value !== input.defaultValue,
  );

function replace(old, fresh) {
  if (old.isEqualNode(fresh) || inUse(old)) return;
  const focused = old.contains(document.activeElement) ? document.activeElement.outerHTML : null;
  const scrolled = [...old.querySelectorAll(".table, pre")].map((each) => each.scrollLeft);
  old.replaceWith(fresh);
  fresh.querySelectorAll(".table, pre").forEach((each, at) => (each.scrollLeft = scrolled[at] ?? 0));
  if (focused === null) return;
  const same = [...fresh.querySelectorAll("a, button")].find((each) => each.outerHTML === focused);
  same?.focus({ preventScroll: true });
}

async function refresh() {
  again = true;
  if (fetching) return; // one at a time, so that an older page never replaces a newer one
  fetching = true;
  try {
    while (again) {
      again = false;
      const response = await fetch(main.dataset.address ?? location.href);
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      const parts = [...(fresh.querySelector("main")?.children ?? main.children)];
      if (parts.length === main.children.length) [...main.children].forEach((old, at) => replace(old, parts[at]));
      else main.replaceChildren(...parts);
      await new Promise((done) => setTimeout(done, PAUSE));
    }
  } catch {
    // The sandbox does not respond; the event source reconnects when it does.
  } finally {
    fetching = false;
  }
}

function showState(text, name) {
  if (state.textContent !== text) state.textContent = text;
  state.className = name;
}

let source = null;

// A browser opens few connections to one host, so hidden pages keep none.
function connect() {
  source?.close();
  source = document.hidden ? null : new EventSource("/_sandbox/events");
  if (source === null) return;
  source.onopen = () => {
    showState("Live", "live");
    refresh(); // for changes since the page was loaded
  };
  source.onmessage = refresh;
  source.onerror = () => showState("The sandbox does not respond: this page may be out of date.", "lost");
}

connect();
document.addEventListener("visibilitychange", connect);
addEventListener("focusout", () => setTimeout(refresh)); // for parts that were not replaced while in use
addEventListener("pagehide", () => source?.close());
addEventListener("pageshow", (event) => event.persisted && location.reload());
