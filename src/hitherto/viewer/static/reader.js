// Shows a path of any length with at most a few hundred messages in the page: chunks are fetched from the server before
// they are seen, and those that are far away are taken out.
const CHUNK = 100; // messages fetched at a time
const MOST = 500; // messages in the page; one more chunk may be on its way
const AHEAD = 2500; // pixels before the edge at which the next chunk is fetched
const LINE = 120; // pixels below the top: what stands here is read now

export class Reader {
  constructor(thread) {
    this.thread = thread;
    this.length = Number(thread.dataset.length);
    this.busy = null;
    this.settled = Promise.resolve(); // when the message that was asked for stays where it is
    this.current = null; // the message that is read now
    this.sticky = makeSticky((id) => this.reveal(document.getElementById(`m-${id}`)));
  }

  get chunks() { return [...this.thread.querySelectorAll(":scope > .chunk")]; }
  get first() { return Number(this.chunks[0].dataset.start); }
  get stop() { return Number(this.chunks.at(-1).dataset.stop); }

  start() {
    history.scrollRestoration = "manual";
    const target = this.thread.dataset.target;
    const element = target && document.getElementById(`m-${target}`);
    if (element) this.reveal(element);
    this.mend();
    let waiting = false;
    const later = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; this.look(); });
    };
    addEventListener("scroll", later, { passive: true });
    addEventListener("resize", later, { passive: true });
    this.look();
    if (element) this.settled = this.settle(element);
    return this;
  }

  // What is loaded above the message that was asked for moves it until all of it is laid out. It is brought back, unless
  // somebody scrolls meanwhile.
  async settle(element) {
    let scrolls = false;
    for (const kind of ["wheel", "touchstart", "pointerdown", "keydown"]) {
      addEventListener(kind, () => { scrolls = true; }, { once: true, passive: true });
    }
    await this.busy?.catch(() => null);
    for (let frame = 0; frame < 3; frame++) {
      await new Promise(requestAnimationFrame);
      if (!scrolls) this.reveal(element);
    }
  }

  // Open what is folded around an element, and bring it into view.
  reveal(element, block = "start") {
    if (!element) return;
    for (let at = element; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    element.scrollIntoView({ block, behavior: "instant" });
  }

  look() {
    this.notice();
    if (this.busy) return;
    const box = this.thread.getBoundingClientRect();
    if (box.bottom < innerHeight + AHEAD && this.stop < this.length) this.busy = this.more("after");
    else if (box.top > -AHEAD && this.first > 0) this.busy = this.more("before");
    this.busy
      ?.catch((error) => console.info(error))
      .finally(() => { this.busy = null; requestAnimationFrame(() => this.look()); });
  }

  // Which message stands at the line, and whose prompt it answers.
  notice() {
    const element = this.at(LINE);
    if (!element || element === this.current) return;
    this.current = element;
    this.sticky(element);
    const position = Number(element.dataset.position);
    document.dispatchEvent(new CustomEvent("reading", { detail: { id: element.dataset.id, position } }));
  }

  at(line) {
    const chunk = this.chunks.find((one) => one.getBoundingClientRect().bottom > line);
    const elements = chunk ? [...chunk.querySelectorAll(":scope > article")] : [];
    let low = 0;
    let high = elements.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (elements[middle].getBoundingClientRect().bottom > line) high = middle;
      else low = middle + 1;
    }
    return elements[low] ?? null;
  }

  async fetchChunk(from, count) {
    const url = new URL(this.thread.dataset.window, location.href);
    url.searchParams.set("from", from);
    url.searchParams.set("count", count);
    const answer = await fetch(url, { credentials: "same-origin" });
    if (!answer.ok) throw new Error(`the messages could not be read: ${answer.status}`);
    this.length = Number(answer.headers.get("X-Length"));
    const holder = document.createElement("template");
    holder.innerHTML = await answer.text();
    return holder.content.firstElementChild;
  }

  async more(where) {
    const from = where === "after" ? this.stop : Math.max(0, this.first - CHUNK);
    const count = where === "after" ? CHUNK : this.first - from;
    const chunk = await this.fetchChunk(from, count);
    const element = this.at(0);
    const top = element?.getBoundingClientRect().top;
    if (where === "after") this.chunks.at(-1).after(chunk);
    else this.chunks[0].before(chunk);
    // Take out what is farthest from where people read.
    while (this.chunks.length > 1 && this.stop - this.first > MOST) {
      (where === "after" ? this.chunks[0] : this.chunks.at(-1)).remove();
    }
    this.mend();
    if (element?.isConnected) {
      const moved = element.getBoundingClientRect().top - top;
      if (Math.abs(moved) > 1) scrollBy({ top: moved, behavior: "instant" });
    }
  }

  // Take in messages that were added at the end; how many there are now.
  async refresh() {
    await this.busy;
    const before = this.length;
    const stop = this.stop;
    const chunk = await this.fetchChunk(stop, CHUNK);
    if (stop < before || this.length <= before) return this.length - before;
    const start = Number(chunk.dataset.start);
    // A result joins the card of its call: the message of the call comes anew.
    for (const article of [...this.thread.querySelectorAll("article")]) {
      if (Number(article.dataset.position) >= start) article.remove();
    }
    this.chunks.at(-1).dataset.stop = start;
    this.chunks.at(-1).after(chunk);
    this.mend();
    return this.length - before;
  }

  // The links for those without scripts say what is not in the page: here it comes by itself.
  mend() {
    for (const link of this.thread.querySelectorAll(":scope > .more")) link.remove();
    document.dispatchEvent(new CustomEvent("chunks"));
  }

  element(id) { return this.thread.querySelector(`[data-id="${CSS.escape(id)}"]`); }

  // Bring a message of this path into view, from the page or from the server.
  async go(id, position, block = "start") {
    if (!this.element(id)) {
      await this.busy;
      const chunk = await this.fetchChunk(Math.max(0, position - CHUNK / 2), CHUNK);
      for (const one of this.chunks) one.remove();
      this.thread.append(chunk);
      this.mend();
    }
    const element = this.element(id);
    this.reveal(element, block);
    this.look();
    return element;
  }

  // Move to the message before or after, wherever it is.
  step(by) {
    const all = [...this.thread.querySelectorAll("article")];
    const at = all.indexOf(this.picked?.isConnected ? this.picked : this.at(LINE));
    this.pick(all[at + by] ?? all[at]);
  }

  pick(element) {
    if (!element) return;
    this.picked?.classList.remove("at");
    this.picked = element.closest("article") ?? element;
    this.picked.classList.add("at");
    this.picked.focus({ preventScroll: true });
    this.reveal(element);
  }
}

// A line below the bar with the prompt that the text answers.
function makeSticky(go) {
  const line = document.createElement("button");
  line.className = "sticky-prompt";
  line.hidden = true;
  line.tabIndex = -1;
  line.setAttribute("aria-hidden", "true");
  const holder = document.createElement("div");
  holder.className = "sticky-holder";
  holder.append(line);
  document.querySelector(".column").prepend(holder);
  line.addEventListener("click", () => go(line.dataset.id));
  return (element) => {
    let prompt = element;
    while (prompt && !prompt.matches?.("article.user:not(.injected)")) {
      prompt = prompt.previousElementSibling ?? prompt.parentElement?.previousElementSibling?.lastElementChild;
    }
    line.hidden = !prompt || prompt === element;
    if (line.hidden) return;
    line.dataset.id = prompt.dataset.id;
    line.textContent = prompt.querySelector(".body")?.textContent.trim().slice(0, 300) ?? "";
  };
}
