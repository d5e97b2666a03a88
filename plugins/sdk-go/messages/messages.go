// Package messages handles the messages of queues that the plugin is subscribed to. A plugin that imports it exports
// `ostler:plugin/messages`.
package messages

import (
	"errors"

	ostler "ostler.dev/sdk"
	"ostler.dev/sdk/wit"
)

// Delivery is a message that was delivered.
type Delivery struct{ wit.MessagesDelivery }

// JSON parses the body. A handler usually rejects a message whose body is not of the type.
func (d *Delivery) JSON(into any) error { return ostler.Decode(d.Body, into) }

// Header returns the text of a header.
func (d *Delivery) Header(name string) (string, bool) {
	for _, header := range d.Properties.Headers {
		if header.Name == name && header.Value.Case == wit.HeaderValueString {
			return header.Value.String, true
		}
	}
	return "", false
}

// Disposition is the decision about a message.
type Disposition = wit.MessagesDisposition

// Ack removes a message from its queue: it is handled.
func Ack() Disposition { return Disposition{Case: wit.MessagesDispositionAck} }

// RetryAfter delivers a message again after this many milliseconds.
func RetryAfter(milliseconds uint64) Disposition {
	return Disposition{Case: wit.MessagesDispositionRetryAfter, RetryAfter: milliseconds}
}

// Reject dead-letters a message that can never be handled; the reason says why.
func Reject(reason string) Disposition {
	return Disposition{Case: wit.MessagesDispositionReject, Reject: reason}
}

// Handler handles one message, which may be delivered more than once. It may create and apply objects and publish
// messages. After an error the message is delivered again with backoff; an error never dead-letters it.
type Handler func(delivery *Delivery) (Disposition, error)

// Export exports a message handler. An init function calls it.
func Export(handler Handler) { wit.MessagesExports = exported{handler} }

type exported struct{ handler Handler }

type result = wit.Result[wit.MessagesDisposition, wit.Error]

func (e exported) Handle(delivery wit.MessagesDelivery) result {
	defer ostler.ReportPanic()
	disposition, err := e.handler(&Delivery{delivery})
	if err == nil {
		return result{Ok: disposition}
	}
	var host *ostler.HostError
	if errors.As(err, &host) {
		return result{Err: &host.Cause}
	}
	return result{Err: &wit.Error{Case: wit.ErrorUnavailable, Unavailable: err.Error()}}
}
