// Starts what the page needs. Reading, searching and following branches work without any of it.
import { startCode } from "./code.js";
import { Find, ranges } from "./find.js";
import { openMap, startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startMap } from "./map.js";
import { Reader } from "./reader.js";

addEventListener("click", (event) => {
  const action = event.target.closest("[data-action]")?.dataset.action;
  if (action === "theme") switchTheme();
  if (action === "map" && document.getElementById("side")) {
    event.preventDefault();
    openMap();
  }
});

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("hitherto-theme", root.dataset.theme);
}

const thread = document.getElementById("thread");
// The page is painted first; but a message that is to be shown is brought into view before that.
const reader = thread?.dataset.length > 0 ? new Reader(thread) : null;
if (thread?.dataset.target) reader?.start();
requestAnimationFrame(() => setTimeout(start));

function start() {
  if (!thread?.dataset.target) reader?.start();
  const find = reader ? new Find(reader) : null;
  startCode();
  startKeys({ reader, find });
  startMap(document.getElementById("side"), reader);
  startLive(reader);
  // For tests: from now on the page answers, and moves no more by itself.
  Promise.resolve(reader?.settled).then(() => { document.documentElement.dataset.started = ""; });

  // The list of conversations, in the order in which it was seen last: what [ and ] go through.
  if (document.body.dataset.page === "list") {
    const ids = [...document.querySelectorAll(".card > a:first-child")].map((one) => one.href.split("/c/")[1]);
    sessionStorage.setItem("hitherto-list", JSON.stringify(ids));
  }

  // A hit of a search marks its words in the message that it leads to.
  const words = document.body.dataset.hit;
  const target = document.querySelector("[data-target='1']");
  if (words && target && CSS.highlights) {
    const found = words.replace(/["*()]/g, " ").split(/\s+/).filter((word) => word && !word.startsWith("-") && word !== "OR");
    CSS.highlights.set("hit", new Highlight(...found.flatMap((word) => ranges(target, word))));
  }
  const asked = new URLSearchParams(location.search).get("find");
  if (asked && find) {
    find.open();
    find.input.value = asked;
    find.ask();
  }

  // Tokens need a look at every message: they come after the page.
  const usage = document.querySelector("[data-usage]");
  if (usage) {
    fetch(usage.dataset.usage, { credentials: "same-origin" }).then((answer) => answer.json()).then(({ path, tree }) => {
      if (!tree.answers) return;
      const say = (one) => `${(one.input_tokens + one.output_tokens).toLocaleString("en")} tokens`;
      usage.textContent = tree.answers === path.answers ? say(path) : `${say(path)} on this branch, ${say(tree)} in all`;
      usage.hidden = false;
    });
  }
}
