// Buttons of code: copy, and wrap long lines. And whatever else has words to copy.
export function startCode() {
  addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy], .code > .buttons button");
    if (!button) return;
    const pre = button.closest(".code")?.querySelector("pre");
    if (button.dataset.wrap) pre.classList.toggle("wrapped");
    else copy(button, button.dataset.copy || pre.textContent);
  });
  document.addEventListener("chunks", dress);
  dress();
}

function dress() {
  for (const code of document.querySelectorAll("figure.code:not(.dressed)")) {
    code.classList.add("dressed");
    const buttons = document.createElement("div");
    buttons.className = "buttons";
    const pre = code.querySelector("pre");
    if (pre.scrollWidth > pre.clientWidth) buttons.append(make("Wrap", "Wrap long lines", { wrap: "1" }));
    buttons.append(make("Copy", "Copy the code"));
    code.append(buttons);
  }
}

function make(words, label, data = {}) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = words;
  button.ariaLabel = label;
  Object.assign(button.dataset, data);
  return button;
}

async function copy(button, text) {
  await navigator.clipboard.writeText(text);
  document.getElementById("status").textContent = `Copied: ${text.slice(0, 80)}`;
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}
