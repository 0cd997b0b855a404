// The shell: who is signed in, where one is, and whether what is shown is current.

import { html, render, useEffect, useErrorBoundary, useState, useTopics } from "./lib/view.js";
import { signIn, signOut, whenSignedOut } from "./lib/api.js";
import { followLinks, location, to } from "./lib/router.js";
import { store } from "./lib/store.js";
import { applyTheme, nextTheme, theme } from "./lib/theme.js";
import { VIEWS } from "./views/index.js";

const GROUPS = /** @type {const} */ ([["operate", "Operate"], ["understand", "Understand"], ["configure", "Configure"]]);

function Shell() {
  useTopics("state", "location", "theme");
  const [open, setOpen] = useState(false);
  const { view, rest } = location();
  const allowed = Object.entries(VIEWS).filter(([, one]) => one.allowed());
  const wanted = view === "fleet" && !store.seesFleet ? "mine" : view;
  const found = Object.hasOwn(VIEWS, wanted) ? VIEWS[wanted] : undefined;
  useEffect(() => {
    setOpen(false);
    document.title = `${[rest.at(-1), found?.name ?? "Not found"].filter(Boolean).join(" · ")} · Berth`;
  }, [window.location.pathname, found?.name]);
  if (store.state === "signed-out") return html`<${SignIn} />`;
  return html`<a class="skip" href="#main">Skip to content</a>
    <header class="top">
      <button class="quiet menu" aria-expanded=${open} aria-controls="nav" onClick=${() => setOpen(!open)}>Menu</button>
      <a class="brand" href="/"><img src="/console/icon.svg" alt="" width="26" height="26" />Berth</a>
      <${Live} />
      <span class="grow"></span>
      <button class="quiet" onClick=${nextTheme} aria-label=${`Theme: ${theme()}. Change it`}>${{ auto: "Auto", light: "Light", dark: "Dark" }[theme()]}</button>
      ${store.who && html`<span class="who" title=${`role ${store.who.role}`}>${store.who.name}</span>`}
      ${store.who?.token && html`<button class="quiet" onClick=${leave}>Sign out</button>`}
    </header>
    <nav id="nav" class=${open ? "side open" : "side"} aria-label="Views">
      ${GROUPS.map(([group, title]) => {
        const shown = allowed.filter(([, one]) => one.group === group);
        return shown.length > 0 && html`<div key=${group}><h2>${title}</h2>
          ${shown.map(([key, one]) => html`<a key=${key} href=${to(key)} aria-current=${key === wanted ? "page" : undefined}>${one.name}</a>`)}</div>`;
      })}
      <div><h2>Reference</h2><a href="/docs">API</a></div>
    </nav>
    <main id="main" tabindex="-1">
      ${store.state === "starting" ? html`<p class="muted loading" role="status">Loading…</p>`
        : !store.who ? html`<p class="muted loading" role="status">Waiting for the server…</p>`
        : !found?.allowed() ? html`<h1>Nothing here</h1><p>No view has this address, or this role may not see it.</p>`
        : html`<${Guarded} key=${window.location.pathname} view=${found.view} rest=${rest} />`}
    </main>`;
}

/** A view that fails says so, and the rest of the page stays. @param {{ view: any, rest: string[] }} props */
function Guarded({ view, rest }) {
  const [error, reset] = useErrorBoundary((/** @type {any} */ failed) => console.error(failed));
  if (error) return html`<div class="error" role="alert"><strong>This view failed</strong><p>${String(error.message ?? error)}</p><button onClick=${reset}>Try again</button></div>`;
  return html`<${view} rest=${rest} />`;
}

/** Whether what is shown is current. */
function Live() {
  useTopics("state");
  const words = { live: "Live", down: "Reconnecting…", loading: "Loading…", starting: "", "signed-out": "" }[store.state];
  return html`<span class=${`live ${store.state}`} role="status"><i aria-hidden="true"></i>${words}</span>`;
}

async function leave() {
  await signOut();
  store.signedOut();
}

function SignIn() {
  const [token, setToken] = useState("");
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    setWrong("");
    try {
      if (await signIn(token.trim())) await store.start();
      else setWrong("This token is not valid: it may be mistyped, expired or revoked.");
    } catch {
      setWrong("The server does not answer.");
    }
    setBusy(false);
  };
  return html`<main id="main" class="sign-in"><form class="card" onSubmit=${send} aria-labelledby="sign-in">
    <img src="/console/icon.svg" alt="" width="48" height="48" />
    <h1 id="sign-in">Sign in to Berth</h1>
    <label class="field"><span>Token</span><input type="password" autocomplete="current-password" required autofocus value=${token}
      aria-invalid=${Boolean(wrong)} onInput=${(/** @type {any} */ event) => setToken(event.target.value)} /></label>
    ${wrong && html`<p class="wrong-text" role="alert">${wrong}</p>`}
    <button class="primary" disabled=${busy}>${busy ? "Signing in…" : "Sign in"}</button>
    <p class="muted">An administrator creates tokens with <code>berth tokens create</code>. The browser keeps it in a cookie that no script can read.</p>
  </form></main>`;
}

applyTheme();
followLinks();
whenSignedOut(() => store.signedOut());
const app = document.getElementById("app");
if (app) {
  app.replaceChildren();
  render(html`<${Shell} />`, app);
}
store.start();
