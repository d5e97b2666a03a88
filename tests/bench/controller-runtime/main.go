// The bench's operator with controller-runtime: a Sample becomes a ConfigMap of its name.
package main

import (
	"context"
	"flag"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// byConfig is the field index of the ConfigMap a Sample reads.
const byConfig = "spec.config"

type reconciler struct {
	client.Client
	meter *meter
}

func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	began := time.Now()
	defer func() { r.meter.took(time.Since(began)) }()

	var sample Sample
	if err := r.Get(ctx, req.NamespacedName, &sample); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	data := map[string]string{"text": sample.Spec.Text}
	if sample.Spec.Config != "" {
		var config corev1.ConfigMap
		name := types.NamespacedName{Namespace: sample.Namespace, Name: sample.Spec.Config}
		if err := r.Get(ctx, name, &config); err != nil {
			return ctrl.Result{}, err
		}
		data["value"] = config.Data["value"]
	}
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: sample.Name, Namespace: sample.Namespace}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, child, func() error {
		child.Data = data
		return controllerutil.SetControllerReference(&sample, child, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	before := sample.Status.DeepCopy()
	meta.SetStatusCondition(&sample.Status.Conditions, metav1.Condition{
		Type: "Ready", Status: metav1.ConditionTrue, ObservedGeneration: sample.Generation,
		Reason: "Applied", Message: "The ConfigMap is there",
	})
	sample.Status.ObservedGeneration = sample.Generation
	if equality.Semantic.DeepEqual(*before, sample.Status) {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, r.Status().Update(ctx, &sample)
}

// readers returns the Samples that read a ConfigMap.
func (r *reconciler) readers(ctx context.Context, config client.Object) []reconcile.Request {
	var samples SampleList
	err := r.List(ctx, &samples, client.InNamespace(config.GetNamespace()),
		client.MatchingFields{byConfig: config.GetName()})
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "listing samples")
		return nil
	}
	requests := make([]reconcile.Request, len(samples.Items))
	for i := range samples.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&samples.Items[i])
	}
	return requests
}

func main() {
	readyFile := flag.String("ready-file", "", "file to which the address of the bench's server is written")
	workers := flag.Int("workers", 16, "reconciles at the same time")
	strip := flag.Bool("strip-managed-fields", false, "keep objects without managedFields")
	elect := flag.Bool("leader-elect", false, "reconcile only as the leader")
	lease := flag.String("lease-name", "bench", "name of the Lease")
	namespace := flag.String("lease-namespace", "default", "namespace of the Lease")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(*readyFile, *workers, *strip, *elect, *lease, *namespace); err != nil {
		ctrl.Log.Error(err, "failed")
		os.Exit(1)
	}
}

func run(readyFile string, workers int, strip, elect bool, lease, namespace string) error {
	scheme := clientgoscheme.Scheme
	if err := sampleTypes.AddToScheme(scheme); err != nil {
		return err
	}
	config := ctrl.GetConfigOrDie()
	// No client-side rate limit: the server is the bottleneck to measure.
	config.QPS = -1
	options := ctrl.Options{
		Scheme:                        scheme,
		Metrics:                       server.Options{BindAddress: "0"},
		LeaderElection:                elect,
		LeaderElectionID:              lease,
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
	}
	if strip {
		options.Cache = cache.Options{DefaultTransform: cache.TransformStripManagedFields()}
	}
	manager, err := ctrl.NewManager(config, options)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	index := func(o client.Object) []string {
		if config := o.(*Sample).Spec.Config; config != "" {
			return []string{config}
		}
		return nil
	}
	if err := manager.GetFieldIndexer().IndexField(ctx, &Sample{}, byConfig, index); err != nil {
		return err
	}
	again := make(chan event.GenericEvent)
	r := &reconciler{Client: manager.GetClient(), meter: &meter{}}
	err = ctrl.NewControllerManagedBy(manager).
		For(&Sample{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.ConfigMap{}).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.readers)).
		WatchesRawSource(source.Channel(again, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
	if err != nil {
		return err
	}
	resync := func() error {
		var samples SampleList
		if err := r.List(ctx, &samples); err != nil {
			return err
		}
		for i := range samples.Items {
			again <- event.GenericEvent{Object: &samples.Items[i]}
		}
		return nil
	}
	if err := r.meter.serve(readyFile, resync); err != nil {
		return err
	}
	return manager.Start(ctx)
}
