// Sets the chosen theme before the page is painted.
document.documentElement.classList.add("js");
const chosen = localStorage.getItem("hitherto-theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
