import { Shell, any, html, path, useContext, useGet } from "../core.js";
import { Change, Loading, Page, Table, Tabs } from "../parts.js";

const USER = [
  { name: "secret", title: "secret key", type: "password", hint: "empty: unchanged" }, { name: "is_super", title: "super user", type: "bool" }, { name: "enabled", title: "enabled", type: "bool" },
];
const words = (text) => text.split(/[\s,]+/).filter(Boolean);
const rule = (values) => ({ resources: words(values.resources), actions: words(values.actions), sources: words(values.sources), deny: values.deny === "yes" });

export default function Access() {
  const { query, session } = useContext(Shell);
  const tab = query.tab ?? "users", isOff = session.login_required === false;
  const found = useGet(isOff ? null : tab === "rules" ? "/rules" : "/users", {}, 15_000);
  const reload = found.reload;
  if (isOff) {
    return html`<${Page} title="Access" facts="access control is off: the brokers accept the requests of every client">
      <p class="muted">There are no users to show. The page Security of the documentation (docs/security.md) says how to enable access control.</p></${Page}>`;
  }
  return html`<${Page} title="Access" of=${found.data ? found : {}} actions=${html`
      <${Change} label="Create user…" title="Create a user" at="/users" onDone=${reload} fields=${[{ name: "user", title: "name", type: "text", required: true }, ...USER]} />`}>
    <${Tabs} chosen=${tab} names=${[["users", "Users"], ["rules", "Rules"]]} />
    ${!found.data ? html`<${Loading} of=${found} />` : tab === "rules" ? html`<${Table} key="rules" rows=${found.data} empty="no user has rules" columns=${[
      { name: "user" }, { name: "decision" }, { name: "actions", sort: false }, { name: "resource" }, { name: "sources", sort: false, cell: (row) => any(row.sources) }, { name: "brokers", sort: false },
      { name: "do", title: "", sort: false, cell: (row) => html`<${Change} label="delete…" title=${`Delete the rule of ${row.user} for ${row.resource}`} method="DELETE" at=${path("users", row.user, "rules")}
        fixed=${{ resource: row.resource }} danger onDone=${reload} />` }]} />`
      : html`<${Table} key="users" rows=${found.data} empty="there are no users" columns=${[
        { name: "user" }, { name: "type" }, { name: "status" }, { name: "brokers", sort: false },
        { name: "do", title: "", sort: false, cell: (row) => html`<span class="list">
          <${Change} label="change…" title=${`Change user ${row.user}`} at="/users" fixed=${{ user: row.user }} fields=${USER} onDone=${reload} />
          <${Change} label="add rule…" title=${`Allow or deny ${row.user}`} at=${path("users", row.user, "rules")} make=${rule} onDone=${reload} fields=${[
            { name: "resources", title: "resources", type: "text", required: true, placeholder: "Topic:orders Group:billing*" },
            { name: "actions", title: "actions", type: "text", required: true, placeholder: "Pub Sub Get List Create Update Delete All" },
            { name: "sources", title: "only from addresses", type: "text", placeholder: "10.0.0.0/8" }, { name: "deny", title: "deny", choices: [["no", "allow"], ["yes", "deny"]], value: "no" }]} />
          <${Change} label="delete…" title=${`Delete user ${row.user}`} method="DELETE" at=${path("users", row.user)} danger onDone=${reload} /></span>` }]} />`}
  </${Page}>`;
}
