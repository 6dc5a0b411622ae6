// Runs @ag-ui/client for the tests: node agui_client.mjs MODULES. Each line of its input is a command in JSON, and is
// answered with a line. Agents of a name keep their state from command to command.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { HttpAgent } = createRequire(`${process.argv[2]}/`)("@ag-ui/client");
const agents = new Map();
let said = [];
for (const way of ["warn", "error"]) console[way] = (...words) => said.push(words.map(String).join(" "));

async function run({ name, config, messages, add, parameters, leaveAfter }) {
  if (config) agents.set(name, new HttpAgent(config));
  const agent = agents.get(name);
  if (messages) agent.setMessages(messages);
  if (add) agent.messages.push(...add);
  const events = [];
  said = [];
  let error = null;
  let result = null;
  try {
    result = await agent.runAgent(parameters, {
      onEvent: ({ event }) => {
        events.push(event);
        if (events.length === leaveAfter) agent.abortRun();
      },
    });
  } catch (caught) {
    error = String(caught);
  }
  const { threadId, pendingInterrupts } = agent;
  return { threadId, events, messages: agent.messages, newMessages: result?.newMessages, pendingInterrupts, error, said };
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await run(JSON.parse(line)))}\n`);
}
