// The tree that a group was sampled as. A node's children are made when it is opened.

function showTree(box, rows, onResponse) {
  const nodes = rows[0]?.tree ?? null;
  box.replaceChildren();
  if (nodes === null) return;
  const children = new Map(nodes.map((node) => [node.id, []]));
  for (const node of nodes) children.get(node.parent)?.push(node);
  const largest = nodes.reduce((most, node) => Math.max(most, Math.abs(node.advantage ?? 0)), 0) || 1;
  const leaves = nodes.filter((node) => children.get(node.id).length === 0).length;
  box.append(make("h2", { textContent: `${counted(nodes.length - 1, "segment")}, ${counted(leaves, "leaf", "leaves")}` }));
  box.append(make("p", { className: "note", textContent:
    "V: mean reward below a node. A: advantage over its siblings, drawn to the left (worse) or right (better)." }));
  box.append(branch(nodes[0], { children, largest, rows, onResponse }));
}

function branch(node, tree) {
  const below = tree.children.get(node.id);
  const details = make("details", { className: node.parent === null ? "node root" : "node" });
  details.append(make("summary", {}, ...nodeLine(node, tree, below.length)));
  if (node.parent === null) fillBranch(details, node, tree);
  else details.addEventListener("toggle", () => fillBranch(details, node, tree), { once: true });
  details.open = node.parent === null;
  return details;
}

function fillBranch(details, node, tree) {
  const below = tree.children.get(node.id);
  const using = tree.rows.filter((row) => row.raw.nodes?.includes(node.id));
  if (node.text) details.append(make("div", { className: "prose", dir: "auto", textContent: node.text }));
  if (node.parent !== null && using.length) {
    const buttons = using.slice(0, 12).map((row) => {
      const button = make("button", { type: "button", textContent: `#${row.index}` });
      button.addEventListener("click", () => tree.onResponse(row.index));
      return button;
    });
    details.append(make("p", { className: "note" }, "Trained on in response ", ...buttons, using.length > 12 ? " …" : ""));
  }
  for (const child of below) details.append(branch(child, tree));
}

function nodeLine(node, tree, below) {
  const line = [make("span", { className: "value", textContent: `V ${number(node.value ?? node.reward)}` })];
  if (node.parent === null) return [...line, make("span", { className: "start", textContent: "the prompt" })];
  line.push(advantageBar(node.advantage, tree.largest));
  line.push(make("span", { className: "advantage", textContent: `A ${number(node.advantage, true)}` }));
  line.push(make("span", { className: "start", textContent: shown((node.text ?? "").slice(0, 160)) }));
  const facts = [counted(node.tokens ?? 0, "token")];
  if (below === 0) facts.push(`reward ${number(node.reward)}`);
  if (node.trained === false) facts.push("not trained on");
  line.push(make("span", { className: "facts", textContent: facts.join(", ") }));
  return line;
}

// A bar from the middle, to the right where the node is better than its siblings.
function advantageBar(advantage, largest) {
  const box = make("span", { className: "diverging", "aria-hidden": "true" });
  const bar = make("i", { className: advantage > 0 ? "p6" : "n6" });
  const share = (50 * Math.min(Math.abs(advantage ?? 0), largest)) / largest;
  bar.style.width = `${share}%`;
  bar.style.left = `${advantage > 0 ? 50 : 50 - share}%`;
  box.append(bar);
  return box;
}
