// Sets the formulas of a page: arithmatex leaves each as \(…\) or \[…\] in an element of the class "arithmatex".
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const text = element.textContent.trim().replaceAll("°", "^\\circ "); // else the index in "ℓ°_t" is the sign's
    katex.render(text.slice(2, -2), element, { displayMode: text.startsWith("\\["), throwOnError: false });
  }
});
