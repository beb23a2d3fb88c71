import { html, useGet } from "../core.js";
import { Loading, Name, Page, Problem, Table } from "../parts.js";

export default function DeadLetters() {
  const counts = useGet("/dead-letters", {}, 10_000);
  if (!counts.data) return html`<${Loading} of=${counts} />`;
  return html`<${Page} title="Dead letters" command=${counts.command} facts="messages that a group failed to consume">
    <${Problem} error=${counts.error} />
    <${Table} rows=${counts.data} empty="no group has dead letters" columns=${[
      { name: "group", cell: (row) => html`<${Name} kind="dead-letters" of=${row.group} />` }, { name: "dead_letters", title: "pending", number: true }]} />
  </${Page}>`;
}
