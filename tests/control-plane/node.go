package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"os"
	"time"

	"k8s.io/component-base/cli"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func runProxy() {
	os.Exit(cli.Run(proxy.NewProxyCommand()))
}

func runScheduler() {
	os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
}

func runKubelet() {
	os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
}

// kubeletClient writes the certificate by which the API server is known to the
// kubelet, and its key. The certificate is its own authority.
func kubeletClient(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want CERTIFICATE-FILE KEY-FILE")
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	certificate := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: []string{"system:masters"}},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().AddDate(1, 0, 0),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate, certificate, &key.PublicKey, key)
	if err != nil {
		return err
	}
	if err := write(args[1], "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key), 0o600); err != nil {
		return err
	}
	return write(args[0], "CERTIFICATE", der, 0o644)
}
