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
      const pressed = [...document.querySelectorAll(".legend [aria-pressed=true]")].map(one => one.id);
      const focused = document.activeElement.id;
      for (const part of ["header", "main"]) document.querySelector(part).replaceWith(fresh.querySelector(part));
      for (const id of pressed) document.getElementById(id)?.click();
      if (focused) document.getElementById(focused)?.focus();
    }
    document.getElementById("state").textContent = "Up to date.";
  } catch (error) {
    document.getElementById("state").textContent = "No answer: descend view has ended. This is what was shown last.";
  }
  setTimeout(ask, 2000);
};
setTimeout(ask, 2000);
