// Figures are drawn when they come near the window. What was singled out in an earlier drawing still is.
const pressedIn = body => [...body.querySelectorAll("[aria-pressed=true]")].map(one => one.id);
const fill = async body => {
  try {
    const answer = await fetch(body.dataset.source, {cache: "no-store"});
    if (!answer.ok) throw new Error(answer.statusText);
    const text = await answer.text(), pressed = pressedIn(body), focused = document.activeElement.id;
    body.innerHTML = text;
    body.dataset.drawn = body.dataset.source;
    for (const id of pressed) document.getElementById(id)?.click();
    if (focused) document.getElementById(focused)?.focus();
  } catch (error) {
    if (!body.querySelector(".chart")) body.textContent = "Not drawn: the page has changed, or descend view has ended.";
  }
};
const near = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); fill(entry.target); }
}, {rootMargin: "400px"});
const watch = () => {
  for (const body of document.querySelectorAll(".body[data-source]"))
    if (body.dataset.drawn !== body.dataset.source) near.observe(body);
};
// A figure of the fresh page begins with the drawing of the page before, which may still be that of its numbers.
const keepDrawings = fresh => {
  for (const body of fresh.querySelectorAll("figure .body[data-source]")) {
    const old = document.getElementById(body.closest("figure").id)?.querySelector(".body");
    if (!old?.dataset.drawn) continue;
    body.replaceChildren(...old.childNodes);
    body.dataset.drawn = old.dataset.drawn;
  }
};
// Asks every two seconds whether there is something new, and fetches the page again if there is.
const ask = async () => {
  const state = document.getElementById("state");
  try {
    const stamp = await (await fetch(document.body.dataset.url, {cache: "no-store"})).text();
    if (stamp !== document.body.dataset.stamp) {
      state.textContent = "Fetching what is new.";
      const answer = await fetch(location.href, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.body.dataset.stamp = fresh.body.dataset.stamp;
      const focused = document.activeElement.id;
      keepDrawings(fresh);
      for (const part of ["header", "main"]) document.querySelector(part).replaceWith(fresh.querySelector(part));
      if (focused) document.getElementById(focused)?.focus();
      watch();
    }
    document.getElementById("state").textContent = "Up to date.";
  } catch (error) {
    document.getElementById("state").textContent = "No answer: descend view has ended. This is what was shown last.";
  }
  setTimeout(ask, 2000);
};
watch();
setTimeout(ask, 2000);
