// RocketMQ's Node.js SDK for gRPC. Arguments: operation, endpoints, access key, secret key (both may be empty).
//
// `send` sends messages of all types and prints SENT; `push` and `simple` print READY, receive COUNT messages of
// the topic Plain and print RECEIVED, `fifo` does so with the topic Fifo and prints the bodies in the order of their
// deliveries. The first delivery of every fifth message fails. `tag` and `sql` do so with the half of the messages
// that a filter matches; each delivery to `dead` fails, until it is killed. `recall` recalls the first of two delayed
// messages and prints RECALLED. `round-trip` sends one message, receives it, acks it and prints ACKED.

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const COUNT = 20;
const COMMIT = 1; // TransactionResolution
const SQL = 2; // FilterType
const [operation, endpoints, accessKey, accessSecret] = process.argv.slice(2);
const log = (...given) => console.error(...given);
const logger = { debug() {}, info: log, warn: log, error: log };
const options = { endpoints, namespace: '', logger };
if (accessKey) options.sessionCredentials = { accessKey, accessSecret };
const failed = new Set();
const bodies = new Set();

async function send() {
  let checked;
  const isChecked = new Promise(resolve => { checked = resolve; });
  const checker = { check: async () => { checked(); return COMMIT; } };
  // With several topics 1.0.8 may miss the response to its settings, and waits for the next one: 5 minutes.
  const producer = new Producer({ ...options, topic: 'Transaction', checker });
  await producer.startup();
  for (let n = 0; n < COUNT; n++) {
    await producer.send({
      topic: 'Plain', body: Buffer.from(`${n}`), tag: n % 2 ? 'odd' : 'even', keys: [`k${n}`],
      properties: new Map([['colour', 'blue'], ['number', `${n}`]]),
    });
  }
  for (let n = 0; n < COUNT; n++) {
    await producer.send({ topic: 'Fifo', body: Buffer.from(`${n}`), messageGroup: 'order-7' });
  }
  await producer.send({ topic: 'Delay', body: Buffer.from('later'), delay: 1500 });
  for (const body of ['committed', 'rolled back', 'checked']) {
    const transaction = producer.beginTransaction();
    await producer.send({ topic: 'Transaction', body: Buffer.from(body) }, transaction);
    if (body === 'committed') await transaction.commit();
    else if (body === 'rolled back') await transaction.rollback();
  }
  await isChecked;
  await producer.shutdown();
  console.log(`SENT ${COUNT}`);
}

function isFirstOfFifth(body) {
  if (Number(body) % 5 !== 0 || failed.has(body)) return false;
  failed.add(body);
  return true;
}

async function push(topic = 'Plain', consumerGroup = 'push', filter = '*', count = COUNT) {
  let done;
  const isDone = new Promise(resolve => { done = resolve; });
  const consume = async view => {
    const body = view.body.toString();
    // 1.0.8 ignores the group's number of retries in a FIFO group: a failed message is a dead letter at once.
    if (topic !== 'Fifo' && isFirstOfFifth(body)) return ConsumeResult.FAILURE;
    bodies.add(body);
    if (bodies.size === count) done();
    return ConsumeResult.SUCCESS;
  };
  const consumer = new PushConsumer({
    ...options, consumerGroup, subscriptions: new Map([[topic, filter]]), messageListener: { consume },
  });
  await consumer.startup();
  console.log('READY');
  await isDone;
  if (topic === 'Fifo') console.log(`ORDER ${[...bodies].join(' ')}`);
  await consumer.shutdown();
}

async function dead() {
  const consumer = new PushConsumer({
    ...options, consumerGroup: 'dead', subscriptions: new Map([['Plain', 'odd']]),
    messageListener: { consume: async () => ConsumeResult.FAILURE },
  });
  await consumer.startup();
  console.log('READY');
  await new Promise(() => {});
}

async function recall() {
  const producer = new Producer({ ...options, topic: 'Delay' });
  await producer.startup();
  const { recallHandle } = await producer.send({ topic: 'Delay', body: Buffer.from('recalled'), delay: 4000 });
  await producer.send({ topic: 'Delay', body: Buffer.from('kept'), delay: 5000 });
  await producer.recallMessage('Delay', recallHandle);
  await producer.shutdown();
  console.log('RECALLED');
}

async function roundTrip() {
  const consumer = new SimpleConsumer({
    ...options, consumerGroup: 'round-trip', subscriptions: new Map([['Plain', '*']]), awaitDuration: 1000,
  });
  await consumer.startup();
  await consumer.receive(1, 30000); // a new group begins at the end of the topic
  const producer = new Producer({ ...options, topic: 'Plain' });
  await producer.startup();
  await producer.send({ topic: 'Plain', body: Buffer.from('hello') });
  let received = [];
  while (received.length === 0) received = await consumer.receive(1, 30000);
  await consumer.ack(received[0]);
  await producer.shutdown();
  await consumer.shutdown();
  console.log(`ACKED ${received[0].body}`);
}

async function simple() {
  const consumer = new SimpleConsumer({
    ...options, consumerGroup: 'simple', subscriptions: new Map([['Plain', '*']]), awaitDuration: 10000,
  });
  await consumer.startup();
  console.log('READY');
  while (bodies.size < COUNT) {
    for (const view of await consumer.receive(16, 30000)) {
      const body = view.body.toString();
      if (isFirstOfFifth(body)) await consumer.changeInvisibleDuration(view, 10000);
      else {
        await consumer.ack(view);
        bodies.add(body);
      }
    }
  }
  await consumer.shutdown();
}

const operations = {
  send, dead, recall, simple,
  'round-trip': roundTrip,
  push: () => push(),
  fifo: () => push('Fifo', 'fifo'),
  tag: () => push('Plain', 'push', 'odd || other', COUNT / 2),
  sql: () => push('Plain', 'push', new FilterExpression("number >= 10 AND colour = 'blue'", SQL), COUNT / 2),
};
operations[operation]().then(() => {
  if (bodies.size) console.log(`RECEIVED ${bodies.size}`);
  process.exit(0);
}, error => {
  console.error(error);
  process.exit(1);
});
