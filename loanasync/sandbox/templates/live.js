// Fetches the page again when something changed; what a person is typing is left alone.
const source = new EventSource("/_sandbox/events");
source.onmessage = async () => {
  if (document.activeElement instanceof HTMLInputElement) return;
  const answer = await fetch(location.href);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  if (fresh) document.querySelector("main").replaceWith(fresh);
};
addEventListener("pagehide", () => source.close());
