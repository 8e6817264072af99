"use strict";
// Where answers come from: the server on this machine, or what is stored beside the page.

class AnswerError extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

class ServerSource {
  constructor() {
    // The token is in the fragment, which browsers do not send; a reload keeps it.
    const found = new URLSearchParams(location.hash.slice(1)).get("token");
    if (found) sessionStorage.setItem("token", found);
    this.token = found || sessionStorage.getItem("token") || "";
    this.study = null;
    this.canChange = true;
  }

  async request(path, options = {}) {
    let answer;
    try {
      answer = await fetch(`/api/${path}`, { ...options, headers: { Authorization: `Bearer ${this.token}` } });
    } catch {
      throw new AnswerError("The server does not answer. Is 'robustnmf view' still running?", 0);
    }
    if (!answer.ok) {
      const told = await answer.json().catch(() => ({}));
      throw new AnswerError(told.error || `The server answered ${answer.status}.`, answer.status);
    }
    return answer;
  }

  async studies() { return (await this.request("studies")).json(); }
  async get(what, query = {}) {
    const text = new URLSearchParams(query).toString();
    return (await this.request(`studies/${this.study}${what ? "/" + what : ""}${text ? "?" + text : ""}`)).json();
  }
  async post(what, content = {}) {
    return (await this.request(`studies/${this.study}/${what}`, { method: "POST", body: JSON.stringify(content) })).json();
  }
  async upload(file) {
    const path = `studies?${new URLSearchParams({ name: file.name })}`;
    return (await this.request(path, { method: "POST", body: file })).json();
  }
  async blob(what) { return (await this.request(`studies/${this.study}/${what}`)).blob(); }
}

class StoredSource {
  constructor(answers) { this.answers = answers; this.canChange = false; this.study = 1; }
  async studies() { return [{ id: 1, name: this.answers[""].name }]; }
  async get(what) {
    const [kind, place] = what.split("/");
    if (place !== undefined) return this.line(kind, Number(place));
    if (!(what in this.answers)) throw new AnswerError("This page has no answer to that: it was made without a server.", 404);
    return this.answers[what];
  }
  // A sample is a row of the entries, a feature a column.
  line(kind, place) {
    const { entries, pictures } = this.answers, ofSample = kind === "sample";
    const values = (name) => (ofSample ? entries[name][place] : entries[name].map((row) => row[place]));
    const line = Object.fromEntries(Object.keys(entries).map((name) => [name, values(name)]));
    return { ...line, start: 0, places: line.measured.map((_, i) => i), pictures: ofSample ? pictures[place] : null };
  }
}

const source = globalThis.storedAnswers ? new StoredSource(globalThis.storedAnswers) : new ServerSource();
