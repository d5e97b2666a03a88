package messages

import (
	"errors"
	"testing"

	ostler "ostler.dev/sdk"
	"ostler.dev/sdk/wit"
)

// The message names the object, so a second delivery meets the object of the first.
func handle(delivery *Delivery) (Disposition, error) {
	var order struct{ Name string }
	if err := delivery.JSON(&order); err != nil {
		return Reject(err.Error()), nil
	}
	err := ostler.Create(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]string{"name": order.Name, "namespace": *delivery.Broker.Namespace}}, false)
	if ostler.IsConflict(err) {
		return Ack(), nil
	}
	if err != nil {
		return Disposition{}, err
	}
	reply := ostler.NewMessage("", "replies", []byte("done"))
	return Ack(), ostler.Upstream{Name: delivery.Broker.Name}.Publish(reply)
}

func deliver(body string) result {
	Export(handle)
	namespace := "team"
	broker := wit.UpstreamRef{Name: "rabbit", Namespace: &namespace}
	return wit.MessagesExports.Handle(wit.MessagesDelivery{Broker: broker, Queue: "orders", Body: []byte(body)})
}

func TestRedeliveredMessageIsAcknowledgedWithoutASecondEffect(t *testing.T) {
	created, published := 0, 0
	wit.KubernetesCreate = func([]byte, wit.KubernetesCreateOptions) ([]byte, *wit.Error) {
		if created++; created > 1 {
			return nil, &wit.Error{Case: wit.ErrorConflict, Conflict: "a exists"}
		}
		return []byte("{}"), nil
	}
	wit.MessagingPublish = func(_ wit.UpstreamRef, message wit.MessagingMessage) *wit.Error {
		if published++; !message.Mandatory || !message.Properties.Persistent || message.RoutingKey != "replies" {
			t.Error(message)
		}
		return nil
	}
	for range 2 {
		if result := deliver(`{"name": "a"}`); result.Err != nil || result.Ok != Ack() {
			t.Error(result)
		}
	}
	if created != 2 || published != 1 {
		t.Error(created, published)
	}
}

func TestErrorOfTheHostIsReturnedAndGarbageIsRejected(t *testing.T) {
	denied := wit.Error{Case: wit.ErrorDenied, Denied: "kubernetes"}
	wit.KubernetesCreate = func([]byte, wit.KubernetesCreateOptions) ([]byte, *wit.Error) { return nil, &denied }
	if result := deliver(`{"name": "a"}`); result.Err == nil || result.Err.Denied != "kubernetes" {
		t.Error(result)
	}
	if result := deliver("{"); result.Err != nil || result.Ok.Case != wit.MessagesDispositionReject {
		t.Error(result)
	}
	Export(func(*Delivery) (Disposition, error) { return Disposition{}, errors.New("later") })
	if result := wit.MessagesExports.Handle(wit.MessagesDelivery{}); result.Err == nil || result.Err.Unavailable != "later" {
		t.Error(result)
	}
}
