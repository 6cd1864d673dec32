// What scrolls sideways can be reached by the tab key and scrolled by the arrow keys.
const reachable = () => {
  for (const one of document.querySelectorAll("pre, .equations, .table-wrapper"))
    if (one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight) one.tabIndex = 0;
};
addEventListener("load", reachable);
addEventListener("resize", reachable);
