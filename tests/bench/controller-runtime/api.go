package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/scheme"
)

var sampleTypes = &scheme.Builder{GroupVersion: schema.GroupVersion{Group: "bench.ostler.dev", Version: "v1"}}

func init() { sampleTypes.Register(&Sample{}, &SampleList{}) }

// Sample becomes a ConfigMap of its name.
type Sample struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              SampleSpec   `json:"spec"`
	Status            SampleStatus `json:"status,omitempty"`
}

// SampleSpec is the desired content of the ConfigMap.
type SampleSpec struct {
	Text   string `json:"text"`
	Config string `json:"config,omitempty"`
}

// SampleStatus is the observed state.
type SampleStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// SampleList is a list of samples.
type SampleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Sample `json:"items"`
}

// The methods that controller-gen would generate.

func (in *SampleStatus) DeepCopy() *SampleStatus {
	out := &SampleStatus{ObservedGeneration: in.ObservedGeneration}
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		for i := range in.Conditions {
			in.Conditions[i].DeepCopyInto(&out.Conditions[i])
		}
	}
	return out
}

func (in *Sample) DeepCopy() *Sample {
	out := &Sample{TypeMeta: in.TypeMeta, Spec: in.Spec, Status: *in.Status.DeepCopy()}
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return out
}

func (in *Sample) DeepCopyObject() runtime.Object { return in.DeepCopy() }

func (in *SampleList) DeepCopyObject() runtime.Object {
	out := &SampleList{TypeMeta: in.TypeMeta}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	if in.Items != nil {
		out.Items = make([]Sample, len(in.Items))
		for i := range in.Items {
			out.Items[i] = *in.Items[i].DeepCopy()
		}
	}
	return out
}
