// Find in the conversation: the server looks, also through what is folded and not in the page.
const PAUSE = 180; // milliseconds after the last letter

export class Find {
  constructor(reader) {
    this.reader = reader;
    this.bar = document.getElementById("find");
    this.input = this.bar.querySelector("input");
    this.count = this.bar.querySelector("output");
    this.other = this.bar.querySelector(".elsewhere");
    this.found = null;
    this.place = -1;
    let timer = 0;
    this.input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.ask(), PAUSE);
    });
    this.bar.addEventListener("submit", (event) => { event.preventDefault(); this.next(1); });
    this.bar.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
      else if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); this.next(-1); }
    });
    this.bar.querySelector("[data-step='-1']").addEventListener("click", () => this.next(-1));
    this.bar.querySelector("[data-step='1']").addEventListener("click", () => this.next(1));
    this.bar.querySelector("[data-close]").addEventListener("click", () => this.close());
    document.addEventListener("chunks", () => this.paint());
  }

  open() {
    this.bar.hidden = false;
    this.input.focus();
    this.input.select();
  }

  close() {
    this.bar.hidden = true;
    this.found = null;
    this.paint();
    this.reader.current?.focus({ preventScroll: true });
  }

  async ask() {
    const query = this.input.value;
    this.asked = query;
    if (!query.trim()) { this.found = null; this.say(); this.paint(); return; }
    const url = new URL(this.bar.action);
    url.searchParams.set("q", query);
    const answer = await fetch(url, { credentials: "same-origin" });
    if (!answer.ok || this.asked !== query) return;
    this.found = await answer.json();
    const here = Number(this.reader.current?.dataset.position ?? 0);
    this.place = this.found.positions.findIndex((position) => position >= here) - 1;
    if (this.found.ids.length) await this.next(1);
    else { this.say(); this.paint(); }
  }

  async next(by) {
    if (this.asked !== this.input.value || !this.found) return this.ask();
    const { ids, positions } = this.found;
    if (!ids.length) return;
    this.place = (this.place + by + ids.length) % ids.length;
    const id = ids[this.place];
    const element = await this.reader.go(id, positions[this.place], "center");
    this.say();
    this.paint();
    this.unfold(element);
  }

  say() {
    const many = this.found?.ids.length ?? 0;
    this.count.textContent = !this.found ? "" : many ? `${this.place + 1} of ${many.toLocaleString("en")}` : "nothing here";
    const { elsewhere = 0, first_elsewhere: first } = this.found ?? {};
    this.other.hidden = !elsewhere;
    this.other.textContent = `${elsewhere.toLocaleString("en")} more on other branches`;
    if (first) this.other.href = `${this.bar.dataset.conversation}/m/${first}?find=${encodeURIComponent(this.asked)}`;
  }

  unfold(element) {
    const range = element && ranges(element, this.asked)[0];
    if (!range) return;
    for (let at = range.startContainer.parentElement; at !== element && at; at = at.parentElement) {
      if (at.tagName === "DETAILS") at.open = true;
    }
    const box = range.getBoundingClientRect();
    if (box.top < 160 || box.bottom > innerHeight - 40) scrollBy({ top: box.top - innerHeight / 3, behavior: "instant" });
  }

  paint() {
    if (!CSS.highlights) return;
    CSS.highlights.delete("find");
    CSS.highlights.delete("find-here");
    if (!this.found || !this.asked?.trim()) return;
    const all = new Highlight();
    for (const id of this.found.ids) {
      const element = this.reader.element(id);
      if (element) for (const range of ranges(element, this.asked)) all.add(range);
    }
    CSS.highlights.set("find", all);
    const here = this.reader.element(this.found.ids[this.place] ?? "");
    if (here) CSS.highlights.set("find-here", new Highlight(...ranges(here, this.asked)));
  }
}

// The places of a text inside an element. Letters of another case count as the same.
export function ranges(element, text) {
  const wanted = text.toLowerCase();
  const found = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const words = node.data.toLowerCase();
    if (words.length !== node.data.length) continue; // a letter that is two in the other case
    for (let at = words.indexOf(wanted); at >= 0; at = words.indexOf(wanted, at + wanted.length)) {
      const range = new Range();
      range.setStart(node, at);
      range.setEnd(node, at + wanted.length);
      found.push(range);
    }
  }
  return found;
}
