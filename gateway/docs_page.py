"""The page at /docs: what /openapi.json says, laid out by a few lines of script. It loads nothing from elsewhere, so
that it works where the gateway cannot reach the internet and tells no other host who looks at it."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>joulegate admin API</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 13px/1.4 ui-monospace, monospace }
details { border-top: 1px solid #ccc; padding: .4rem 0 }
summary { cursor: pointer }
b { display: inline-block; width: 4.5rem }
pre { overflow: auto; background: #f4f4f4; padding: .6rem }
</style>
<h1>joulegate admin API</h1>
<p>Made from <a href="/openapi.json"><code>/openapi.json</code></a>, which any OpenAPI tool reads.</p>
<main>...</main>
<script>
const add = (parent, tag, text) => {
  const made = parent.appendChild(document.createElement(tag));
  made.textContent = text;
  return made;
};
const show = (main, api) => {
  main.textContent = "";
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, call] of Object.entries(methods)) {
      const details = main.appendChild(document.createElement("details"));
      const summary = details.appendChild(document.createElement("summary"));
      add(summary, "b", method.toUpperCase());
      add(summary, "code", path);
      add(summary, "span", " " + (call.description || call.summary || ""));
      add(details, "pre", JSON.stringify({ parameters: call.parameters, requestBody: call.requestBody,
        responses: call.responses }, null, 2));
    }
  }
  add(main, "h2", "Schemas");
  for (const [name, schema] of Object.entries((api.components || {}).schemas || {})) {
    const details = main.appendChild(document.createElement("details"));
    details.id = name;
    add(details.appendChild(document.createElement("summary")), "code", name);
    add(details, "pre", JSON.stringify(schema, null, 2));
  }
};
const main = document.querySelector("main");
fetch("/openapi.json").then((said) => said.json()).then((api) => show(main, api), (error) => {
  main.textContent = "/openapi.json cannot be read: " + error;
});
</script>
</html>
"""


def add_docs_page(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(PAGE, headers={"content-security-policy": "default-src 'self' 'unsafe-inline'"})
