// Elements are made here and nowhere else: whatever is written into them is text, never markup.

export function make(tag, attributes = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...inside.filter((part) => part !== null && part !== undefined));
  return element;
}

export function button(label, title, onclick) {
  return make("button", { type: "button", className: "small", title, onclick, "aria-label": title }, label);
}

export const byId = (id) => document.getElementById(id);
