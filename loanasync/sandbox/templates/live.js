// Keeps a page up to date: asks for it again when something changed, and puts in the parts that differ.
// Without this script a reload does the same.
const PAUSE = 150; // milliseconds between two questions, so that a busy sandbox has time for its calls
const main = document.querySelector("main");
const state = document.querySelector("#live");
let asking = false;
let again = false;

// What a person has typed, and what they were told about it, is left alone.
const inUse = (part) =>
  part.querySelector(".wrong") !== null ||
  [...part.querySelectorAll("input")].some(
    (input) => input === document.activeElement || input.value !== input.defaultValue,
  );

function put(old, fresh) {
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
  if (asking) return; // one at a time, so that an older page never replaces a newer one
  asking = true;
  try {
    while (again) {
      again = false;
      const answer = await fetch(main.dataset.address ?? location.href);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const parts = [...(fresh.querySelector("main")?.children ?? main.children)];
      if (parts.length === main.children.length) [...main.children].forEach((old, at) => put(old, parts[at]));
      else main.replaceChildren(...parts);
      await new Promise((done) => setTimeout(done, PAUSE));
    }
  } catch {
    // It does not answer; the events say when it does again.
  } finally {
    asking = false;
  }
}

function say(text, name) {
  if (state.textContent !== text) state.textContent = text;
  state.className = name;
}

const source = new EventSource("/_sandbox/events");
source.onopen = () => {
  say("Live", "live");
  refresh(); // for what changed between the page and this moment
};
source.onmessage = refresh;
source.onerror = () => say("The sandbox does not answer: this page may be out of date.", "lost");
addEventListener("focusout", () => setTimeout(refresh)); // what was left alone meanwhile
addEventListener("pagehide", () => source.close());
addEventListener("pageshow", (event) => event.persisted && location.reload());
