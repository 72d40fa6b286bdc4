// What stands in a figure's title, shown on hover and focus, and kept open by a click or Enter. Without this script the title does.
(() => {
  const tip = document.getElementById("tip");
  let owner = null, pinned = false;
  const figureOf = (event) => event.target.closest?.("a.f, svg.plot a");
  const line = (name, value) => {
    const term = document.createElement("dt"), said = document.createElement("dd");
    term.textContent = name;
    said.append(value);
    return [term, said];
  };
  const fill = (figure) => {
    const href = figure.getAttribute("href") ?? figure.getAttribute("xlink:href");
    const [file, pointer] = href.split("#");
    const link = Object.assign(document.createElement("a"), { href: file, textContent: file.replace(/^(\.\.\/)+/, "") });
    const list = document.createElement("dl");
    list.append(...line("file", link), ...line("field", pointer));
    const [, ...rest] = (figure.dataset.title ?? "").split(" · ");
    for (const part of rest) list.append(...(part.startsWith("records: ") ? line("records", part.slice(9)) : line("computed", part)));
    tip.replaceChildren(list);
  };
  const place = (figure) => {
    const box = figure.getBoundingClientRect();
    const left = Math.max(16, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 16));
    const below = box.bottom + tip.offsetHeight + 12 < innerHeight || box.top < tip.offsetHeight + 12;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${scrollY + (below ? box.bottom + 6 : box.top - tip.offsetHeight - 6)}px`;
  };
  const show = (figure) => {
    if (figure.title) [figure.dataset.title, figure.title] = [figure.title, ""];
    owner = figure;
    fill(figure);
    tip.hidden = false;
    place(figure);
  };
  const hide = () => {
    tip.hidden = true;
    owner = null;
    pinned = false;
  };
  const leave = (event) => {
    if (!pinned && !tip.contains(event.relatedTarget)) hide();
  };
  document.addEventListener("mouseover", (event) => { if (!pinned && figureOf(event)) show(figureOf(event)); });
  document.addEventListener("focusin", (event) => {
    if (figureOf(event)) { pinned = false; show(figureOf(event)); }
    else if (!tip.contains(event.target)) hide();
  });
  document.addEventListener("mouseout", (event) => { if (figureOf(event)) leave(event); });
  tip.addEventListener("mouseleave", leave);
  document.addEventListener("click", (event) => {
    const figure = figureOf(event);
    if (figure) {
      event.preventDefault();
      show(figure);
      pinned = true;
      tip.querySelector("a").focus({ preventScroll: true });
    } else if (!tip.contains(event.target)) hide();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && owner) {
      const back = owner;
      if (tip.contains(document.activeElement)) back.focus();
      hide();
    }
  });
})();
