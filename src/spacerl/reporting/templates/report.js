"use strict";
// The page is whole without this: it switches curves off, changes the axis, and says the values under the pointer.
for (const section of document.querySelectorAll("section")) {
  const off = new Set();
  const names = [...section.querySelectorAll("button[data-curve]")].map((button) => button.textContent.trim());
  for (const button of section.querySelectorAll("button[data-curve]")) {
    const number = Number(button.dataset.curve);
    button.addEventListener("click", () => {
      const hidden = off.delete(number) ? false : Boolean(off.add(number));
      button.setAttribute("aria-pressed", String(!hidden));
      for (const part of section.querySelectorAll(`svg.plot [id*="-curve${number}-"]`)) {
        part.style.display = hidden ? "none" : "";
      }
    });
  }
  for (const chosen of section.querySelectorAll("select[data-axes]")) {
    chosen.addEventListener("change", () => {
      for (const figure of section.querySelectorAll("figure[data-axis]")) {
        figure.hidden = figure.dataset.axis !== chosen.value;
      }
    });
  }
  for (const plot of section.querySelectorAll("svg.plot[data-curves]")) {
    const curves = JSON.parse(plot.dataset.curves);
    const box = document.createElement("div");
    box.className = "values";
    plot.addEventListener("pointerleave", () => box.remove());
    plot.addEventListener("pointermove", (event) => {
      const shown = curves.filter((curve) => !off.has(curve.curve) && curve.x.length);
      if (!shown.length) {
        box.remove();
        return;
      }
      const frame = plot.getBoundingClientRect();
      const x = ((event.clientX - frame.left) / frame.width) * plot.viewBox.baseVal.width;
      const nearest = (curve) => curve.px.reduce((best, px, i) => (Math.abs(px - x) < Math.abs(curve.px[best] - x) ? i : best), 0);
      const lines = shown.sort((a, b) => a.curve - b.curve).map((curve) => {
        const i = nearest(curve);
        return `${names[curve.curve] ?? "curve"}: ${curve.y[i].toPrecision(5)} at ${curve.x[i].toLocaleString()}`;
      });
      box.textContent = lines.join("\n");
      document.body.append(box);
      const left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8);
      box.style.left = `${Math.max(left, 4)}px`;
      box.style.top = `${Math.max(event.clientY - box.offsetHeight - 10, 4)}px`;
    });
  }
}
