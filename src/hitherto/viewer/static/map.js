// What stands beside a conversation, fetched after the messages are there: the branch map, a tree for the keyboard, and
// the prompts.
export async function startMap(side, reader) {
  const map = document.querySelector(".map");
  if (map) makeTree(map);
  if (!side) return;
  for (const holder of side.querySelectorAll(".holder")) {
    const answer = await fetch(holder.dataset.from, { credentials: "same-origin" });
    if (!answer.ok) continue;
    holder.innerHTML = await answer.text();
    if (holder.querySelector(".map")) makeTree(holder);
  }
  const groups = [side.querySelectorAll(".map a.active"), side.querySelectorAll(".prompts a")].map((all) => [...all]);
  side.addEventListener("click", async (event) => {
    const item = event.target.closest(".map a.active, .prompts a");
    if (!item || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    side.classList.remove("open");
    if (!(await reader?.go(item.dataset.id, Number(item.dataset.position)))) location.assign(item.href);
  });
  const mark = (position) => {
    for (const items of groups) {
      // What is read now: the last one that begins at or before this message.
      const here = items.findLast((item) => Number(item.dataset.position ?? -1) <= position);
      for (const item of items) item.classList.toggle("here", item === here);
    }
  };
  document.addEventListener("reading", (event) => mark(event.detail.position));
  if (reader?.current) mark(Number(reader.current.dataset.position));
}

// One stop for Tab; arrows move inside.
function makeTree(map) {
  const items = [...map.querySelectorAll("[role=treeitem]")];
  const start = items.find((item) => item.classList.contains("has-head")) ?? items[0];
  for (const item of items) item.tabIndex = item === start ? 0 : -1;
  map.addEventListener("keydown", (event) => {
    const at = items.indexOf(document.activeElement);
    if (at < 0) return;
    const level = (item) => Number(item.ariaLevel);
    const to = {
      ArrowDown: () => items[at + 1],
      ArrowUp: () => items[at - 1],
      Home: () => items[0],
      End: () => items.at(-1),
      ArrowLeft: () => items.slice(0, at).findLast((item) => level(item) < level(items[at])),
      ArrowRight: () => items.slice(at + 1).find((item) => level(item) === level(items[at]) + 1),
    }[event.key]?.();
    if (!to) return;
    event.preventDefault();
    event.stopPropagation();
    items[at].tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  });
}
