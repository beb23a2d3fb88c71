// RocketMQ's Go SDK for gRPC. Arguments: operation, endpoints, access key, secret key (both may be empty).
//
// `send` sends messages of all types and prints SENT; `push` and `simple` print READY, receive COUNT messages of
// the topic Plain and print RECEIVED, `fifo` does so with the topic Fifo and prints the bodies in the order of their
// first deliveries: 5.1.4 does not wait for the retry of a message that failed. The first delivery of every fifth message fails. `tag` and `sql` do so with the half of the messages
// that a filter matches; each delivery to `dead` fails, until it is killed. `recall` recalls the first of two delayed
// messages and prints RECALLED.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const count = 20

var background = context.Background()

func config(group string) *rmq.Config {
	keys := &credentials.SessionCredentials{AccessKey: os.Args[3], AccessSecret: os.Args[4]}
	return &rmq.Config{Endpoint: os.Args[2], ConsumerGroup: group, Credentials: keys}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func message(topic string, body string) *rmq.Message {
	return &rmq.Message{Topic: topic, Body: []byte(body)}
}

func producerOf(options ...rmq.ProducerOption) rmq.Producer {
	producer, err := rmq.NewProducer(config(""), options...)
	must(err)
	must(producer.Start())
	return producer
}

func sent(producer rmq.Producer, message *rmq.Message) *rmq.SendReceipt {
	receipts, err := producer.Send(background, message)
	must(err)
	return receipts[0]
}

func send() {
	checked := make(chan struct{}, count)
	check := func(*rmq.MessageView) rmq.TransactionResolution {
		checked <- struct{}{}
		return rmq.COMMIT
	}
	producer := producerOf(
		rmq.WithTopics("Plain", "Fifo", "Delay", "Transaction"),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}),
	)
	for n := range count {
		plain := message("Plain", strconv.Itoa(n))
		plain.SetTag([]string{"even", "odd"}[n%2])
		plain.SetKeys("k" + strconv.Itoa(n))
		plain.AddProperty("colour", "blue")
		plain.AddProperty("number", strconv.Itoa(n))
		sent(producer, plain)
	}
	for n := range count {
		fifo := message("Fifo", strconv.Itoa(n))
		fifo.SetMessageGroup("order-7")
		sent(producer, fifo)
	}
	later := message("Delay", "later")
	later.SetDelayTimestamp(time.Now().Add(1500 * time.Millisecond))
	sent(producer, later)
	for _, body := range []string{"committed", "rolled back", "checked"} {
		transaction := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(background, message("Transaction", body), transaction)
		must(err)
		switch body {
		case "committed":
			must(transaction.Commit())
		case "rolled back":
			must(transaction.RollBack())
		}
	}
	<-checked
	must(producer.GracefulStop())
	fmt.Println("SENT", count)
}

func push(topic string, group string, filter *rmq.FilterExpression, expected int) {
	var lock sync.Mutex
	var order []string
	delivered, failed, received := map[string]bool{}, map[string]bool{}, map[string]bool{}
	done := make(chan struct{})
	consume := func(view *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		body := string(view.GetBody())
		if !delivered[body] {
			delivered[body] = true
			order = append(order, body)
		}
		if n, _ := strconv.Atoi(body); group == "dead" || (n%5 == 0 && !failed[body]) {
			failed[body] = true
			return rmq.FAILURE
		}
		if !received[body] {
			received[body] = true
			if len(received) == expected {
				close(done)
			}
		}
		return rmq.SUCCESS
	}
	consumer, err := rmq.NewPushConsumer(config(group),
		rmq.WithPushAwaitDuration(10*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}),
		rmq.WithPushConsumptionThreadCount(8),
		rmq.WithPushMaxCacheMessageCount(1024),
	)
	must(err)
	must(consumer.Start())
	fmt.Println("READY")
	<-done
	if topic == "Fifo" {
		fmt.Println("ORDER", strings.Join(order, " "))
	}
	fmt.Println("RECEIVED", len(received))
	must(consumer.GracefulStop())
}

func simple() {
	failed, received := map[string]bool{}, map[string]bool{}
	subscriptions := map[string]*rmq.FilterExpression{"Plain": rmq.SUB_ALL}
	consumer, err := rmq.NewSimpleConsumer(config("simple"),
		rmq.WithSimpleAwaitDuration(10*time.Second), rmq.WithSimpleSubscriptionExpressions(subscriptions))
	must(err)
	must(consumer.Start())
	fmt.Println("READY")
	for len(received) < count {
		views, err := consumer.Receive(background, 16, 30*time.Second)
		if err != nil { // it reports an empty response as an error
			log.Print(err)
			continue
		}
		for _, view := range views {
			body := string(view.GetBody())
			if n, _ := strconv.Atoi(body); n%5 == 0 && !failed[body] {
				failed[body] = true
				must(consumer.ChangeInvisibleDuration(view, 10*time.Second))
				continue
			}
			must(consumer.Ack(background, view))
			received[body] = true
		}
	}
	fmt.Println("RECEIVED", len(received))
	must(consumer.GracefulStop())
}

func recall() {
	producer, now := producerOf(rmq.WithTopics("Delay")), time.Now()
	recalled, kept := message("Delay", "recalled"), message("Delay", "kept")
	recalled.SetDelayTimestamp(now.Add(4 * time.Second))
	kept.SetDelayTimestamp(now.Add(5 * time.Second))
	handle := sent(producer, recalled).RecallHandle
	sent(producer, kept)
	_, err := producer.Recall(background, "Delay", handle)
	must(err)
	must(producer.GracefulStop())
	fmt.Println("RECALLED")
}

func main() {
	rmq.EnableSsl = false
	switch os.Args[1] {
	case "send":
		send()
	case "push":
		push("Plain", "push", rmq.SUB_ALL, count)
	case "fifo":
		push("Fifo", "fifo", rmq.SUB_ALL, count)
	case "tag":
		push("Plain", "push", rmq.NewFilterExpression("odd || other"), count/2)
	case "sql":
		push("Plain", "push",
			rmq.NewFilterExpressionWithType("number >= 10 AND colour = 'blue'", rmq.SQL92), count/2)
	case "dead":
		push("Plain", "dead", rmq.NewFilterExpression("odd"), count)
	case "recall":
		recall()
	default:
		simple()
	}
}
