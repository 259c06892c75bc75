// What is chosen, in the page's address, so that it can be shared. Values that the page does not offer are ignored.
const controls = new Map();

function chosen(name) {
  return controls.get(name)?.value ?? "";
}

function readAddress() {
  if (location.hash !== "" && !location.hash.includes("=")) return false; // a link within the page
  const wanted = new URLSearchParams(location.hash.slice(1));
  for (const [name, control] of controls) {
    const value = wanted.get(name);
    if (control.tagName === "SELECT") {
      const options = [...control.options];
      control.selectedIndex = Math.max(0, options.findIndex((option) => option.value === (value ?? control.dataset.usual)));
    } else {
      control.value = (value ?? "").slice(0, 200);
    }
  }
  return true;
}

function writeAddress() {
  const kept = new URLSearchParams();
  for (const [name, control] of controls) {
    if (control.value !== (control.dataset.usual ?? "")) kept.set(name, control.value);
  }
  const hash = kept.toString();
  try {
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  } catch {
    location.hash = hash; // where a page has no history, such as in a sandboxed frame
  }
}
