// A real Kubernetes control plane and node in one binary: the first argument
// selects the component to run.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/etcdmain"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	// Each part parses os.Args itself, so it must see its own name first.
	os.Args = os.Args[1:]
	switch os.Args[0] {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllermanager.NewControllerManagerCommand()))
	case "keygen":
		exit(keygen(os.Args[1:]))
	case "ready":
		exit(ready(os.Args[1:]))
	case "serve-proxy":
		exit(serveProxy(os.Args[1:]))
	case "kube-scheduler":
		runScheduler()
	case "kube-proxy":
		runProxy()
	case "kubelet":
		runKubelet()
	case "kubelet-client":
		exit(kubeletClient(os.Args[1:]))
	default:
		usage()
	}
}

// keygen writes the key pair that signs service account tokens.
func keygen(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want PRIVATE-FILE PUBLIC-FILE")
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	private := x509.MarshalPKCS1PrivateKey(key)
	if err := write(args[0], "RSA PRIVATE KEY", private, 0o600); err != nil {
		return err
	}
	return write(args[1], "PUBLIC KEY", public, 0o644)
}

func write(path, kind string, der []byte, mode os.FileMode) error {
	block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	return os.WriteFile(path, block, mode)
}

// ready waits until the API server is ready and has created its namespaces, and
// until a node is Ready, if one is named.
func ready(args []string) error {
	if len(args) != 2 && len(args) != 3 {
		return fmt.Errorf("want KUBECONFIG TIMEOUT [NODE]")
	}
	timeout, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		if _, last = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); last != nil {
			return false, nil
		}
		if _, last = client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); last != nil {
			return false, nil
		}
		if len(args) == 3 {
			last = checkNode(ctx, client, args[2])
		}
		return last == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

// checkNode fails unless the node is Ready, and open to pods of every kind.
func checkNode(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(node.Spec.Taints) > 0 {
		return fmt.Errorf("the node %s has the taint %s", name, node.Spec.Taints[0].Key)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return fmt.Errorf("the node %s is not Ready: %s", name, condition.Message)
		}
		if condition.Type == corev1.NodeReady {
			return nil
		}
	}
	return fmt.Errorf("the node %s has no condition Ready", name)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "control-plane:", err)
		os.Exit(1)
	}
}

// serveProxy serves the API server of a kubeconfig on loopback with the
// credentials of that, as kubectl proxy does, and prints its URL.
func serveProxy(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want KUBECONFIG")
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", listener.Addr())
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = transport
	return http.Serve(listener, proxy)
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: control-plane etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kube-proxy|kubelet|keygen|kubelet-client|ready|serve-proxy [ARGUMENT...]")
	os.Exit(2)
}
