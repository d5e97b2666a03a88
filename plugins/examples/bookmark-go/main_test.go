package main

import (
	"strings"
	"testing"

	"ostler.dev/sdk/wit"
)

func reconcilePath(path string) wit.Result[wit.ReconcilerOutcome, wit.ReconcilerFailure] {
	object := `{"metadata": {"name": "a", "namespace": "b"}, "spec": {"title": "A", "upstream": "pages", "path": "` + path + `", "every": 2}}`
	return wit.ReconcilerExports.Reconcile(wit.ReconcilerRequest{
		Object: []byte(object),
		Ref:    wit.ObjectRef{Gvk: wit.Gvk{Group: "examples.ostler.dev", Version: "v1alpha1", Kind: "Bookmark"}, Name: "a"},
	})
}

func TestReconcileAppliesConfigMapWithPage(t *testing.T) {
	var sent wit.HttpRequest
	wit.HttpSend = func(request wit.HttpRequest) (wit.HttpResponse, *wit.Error) {
		sent = request
		return wit.HttpResponse{Status: 200, Body: []byte("page")}, nil
	}
	var applied string
	wit.KubernetesApply = func(object []byte, options wit.KubernetesApplyOptions) ([]byte, *wit.Error) {
		if !options.Owned || !options.Force {
			t.Errorf("options %v", options)
		}
		applied = string(object)
		return object, nil
	}
	result := reconcilePath("/x")
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	if sent.Method != wit.HttpMethodGet || sent.PathAndQuery != "/x" || sent.Upstream.Name != "pages" {
		t.Errorf("sent %v", sent)
	}
	if !strings.Contains(applied, `"data":{"page":"page","title":"A"}`) {
		t.Errorf("applied %s", applied)
	}
	if next := result.Ok.Next; next.Case != wit.ReconcilerNextPoll || *next.Poll != 2000 {
		t.Errorf("next %v", next)
	}
}

func TestReconcileReportsMissingUpstreamAndInvalidPath(t *testing.T) {
	wit.HttpSend = func(wit.HttpRequest) (wit.HttpResponse, *wit.Error) {
		return wit.HttpResponse{}, &wit.Error{Case: wit.ErrorNotFound, NotFound: "Upstream pages"}
	}
	failure := reconcilePath("/x").Err
	if failure.Resolution.Case != wit.ReconcilerResolutionWait || failure.Message != "Not found: Upstream pages" {
		t.Errorf("%v", failure)
	}
	if failure = reconcilePath("x").Err; failure.Resolution.Case != wit.ReconcilerResolutionTerminal {
		t.Errorf("%v", failure)
	}
}
