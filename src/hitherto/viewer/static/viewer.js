// Starts what the page needs. Reading, searching and following branches work without any of it.
import { startReader } from "./reader.js";

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-action]");
  if (button?.dataset.action === "theme") switchTheme();
});

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("hitherto-theme", root.dataset.theme);
}

const thread = document.getElementById("thread");
if (thread?.dataset.length > 0) startReader(thread);
