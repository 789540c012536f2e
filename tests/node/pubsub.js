// Uses Google's Node client against PUBSUB_EMULATOR_HOST and prints what it saw as one line of JSON.
import { PubSub } from '@google-cloud/pubsub';

const pubsub = new PubSub({ projectId: 'shop' });

const [topic] = await pubsub.createTopic('orders');
const [subscription] = await topic.createSubscription('orders', {
  filter: 'NOT attributes.test = "yes"',
  ackDeadlineSeconds: 20,
  flowControl: { maxMessages: 20 },
});

const publishing = [];
for (let n = 0; n < 500; n++) {
  publishing.push(topic.publishMessage({ data: Buffer.from(`order ${n}`), attributes: { n: String(n), 'språk': 'svenska' } }));
}
publishing.push(topic.publishMessage({ data: Buffer.from('unwanted'), attributes: { test: 'yes' } }));
const ids = await Promise.all(publishing);

const seen = new Map();
let redelivered = 0;
await new Promise((resolve, reject) => {
  const nacked = new Set();
  subscription.on('error', reject);
  subscription.on('message', (message) => {
    if (message.attributes.n.endsWith('3') && !nacked.has(message.id)) {
      nacked.add(message.id);
      message.nack();
      return;
    }
    if (nacked.has(message.id)) redelivered++;
    seen.set(message.id, [message.data.toString(), message.attributes['språk'], message.publishTime.getTime()]);
    message.ack();
    if (seen.size === 500) resolve();
  });
});
await subscription.close();

const ledger = pubsub.topic('ledger', { messageOrdering: true });
await ledger.create();
const [ordered] = await ledger.createSubscription('ledger', { enableMessageOrdering: true });
await Promise.all(
  Array.from({ length: 100 }, (_, n) => ledger.publishMessage({ data: Buffer.from(String(n)), orderingKey: `key${n % 2}` })),
);
const order = { key0: [], key1: [] };
await new Promise((resolve, reject) => {
  ordered.on('error', reject);
  ordered.on('message', (message) => {
    order[message.orderingKey].push(Number(message.data.toString()));
    message.ack();
    if (order.key0.length + order.key1.length === 100) resolve();
  });
});
await ordered.close();

let missing = 0;
try {
  await pubsub.subscription('missing').getMetadata();
} catch (error) {
  missing = error.code;
}

const sorted = (numbers) => numbers.every((number, at) => at === 0 || numbers[at - 1] < number);
console.log(
  JSON.stringify({
    uniqueIds: new Set(ids).size,
    seen: seen.size,
    redelivered,
    dataAsSent: [...seen.values()].every(([text, language]) => text.startsWith('order ') && language === 'svenska'),
    publishTimeIsNow: [...seen.values()].every(([, , time]) => Math.abs(Date.now() - time) < 60_000),
    ordered: sorted(order.key0) && sorted(order.key1),
    missing,
  }),
);
process.exit(0);
