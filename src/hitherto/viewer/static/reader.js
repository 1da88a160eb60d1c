// Shows a path of any length with at most a few hundred messages in the page: chunks are fetched from the server before
// they are seen, and those that are far away are taken out.
const CHUNK = 100; // messages fetched at a time
const MOST = 500; // messages in the page; one more chunk may be on its way
const AHEAD = 2500; // pixels before the edge at which the next chunk is fetched

export function startReader(thread) {
  const reader = new Reader(thread);
  reader.start();
  return reader;
}

export class Reader {
  constructor(thread) {
    this.thread = thread;
    this.length = Number(thread.dataset.length);
    this.busy = null;
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
    addEventListener("scroll", () => this.look(), { passive: true });
    addEventListener("resize", () => this.look(), { passive: true });
    this.look();
  }

  // Open what is folded around an element, and bring it into view.
  reveal(element, block = "start") {
    for (let at = element; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    const inner = element.querySelector(":scope > details.tool");
    if (element.classList.contains("result") && inner) inner.open = true;
    element.scrollIntoView({ block, behavior: "instant" });
  }

  look() {
    if (this.busy) return;
    const box = this.thread.getBoundingClientRect();
    if (box.bottom < innerHeight + AHEAD && this.stop < this.length) this.busy = this.more("after");
    else if (box.top > -AHEAD && this.first > 0) this.busy = this.more("before");
    this.busy?.finally(() => { this.busy = null; requestAnimationFrame(() => this.look()); });
  }

  async fetchChunk(from, count) {
    const url = new URL(this.thread.dataset.window, location.href);
    url.searchParams.set("from", from);
    url.searchParams.set("count", count);
    const answer = await fetch(url, { credentials: "same-origin" });
    if (!answer.ok) throw new Error(`the page could not be read: ${answer.status}`);
    this.length = Number(answer.headers.get("X-Length"));
    const holder = document.createElement("template");
    holder.innerHTML = await answer.text();
    return holder.content.firstElementChild;
  }

  async more(where) {
    const from = where === "after" ? this.stop : Math.max(0, this.first - CHUNK);
    const count = where === "after" ? CHUNK : this.first - from;
    const chunk = await this.fetchChunk(from, count);
    const anchor = this.anchor();
    if (where === "after") this.chunks.at(-1).after(chunk);
    else this.chunks[0].before(chunk);
    this.trim(where);
    this.mend();
    this.keep(anchor);
  }

  // Take out what is farthest from where people read.
  trim(where) {
    while (this.chunks.length > 1 && this.stop - this.first > MOST) {
      (where === "after" ? this.chunks[0] : this.chunks.at(-1)).remove();
    }
  }

  // The message that is read now, and where it stands in the window.
  anchor() {
    for (const chunk of this.chunks) {
      if (chunk.getBoundingClientRect().bottom <= 0) continue;
      for (const element of chunk.children) {
        const box = element.getBoundingClientRect();
        if (box.bottom > 0) return { element, top: box.top };
      }
    }
    return null;
  }

  keep(anchor) {
    if (!anchor?.element.isConnected) return;
    const moved = anchor.element.getBoundingClientRect().top - anchor.top;
    if (Math.abs(moved) > 1) scrollBy({ top: moved, behavior: "instant" });
  }

  // The links for those without scripts say what is not in the page.
  mend() {
    for (const link of this.thread.querySelectorAll(":scope > .more")) link.remove();
    this.thread.dispatchEvent(new CustomEvent("chunks", { bubbles: true }));
  }

  // Bring a message of this path into view, from the page or from the server.
  async go(id, position, block = "start") {
    let element = document.querySelector(`[data-id="${CSS.escape(id)}"]`);
    if (!element) {
      await this.busy;
      const from = Math.max(0, position - CHUNK / 2);
      const chunk = await this.fetchChunk(from, CHUNK);
      this.thread.querySelectorAll(":scope > .chunk").forEach((one) => one.remove());
      this.thread.append(chunk);
      this.mend();
      element = document.querySelector(`[data-id="${CSS.escape(id)}"]`);
    }
    if (element) this.reveal(element, block);
    this.look();
    return element;
  }
}
