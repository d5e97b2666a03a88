// The real Argo CD: API server, application controller, repo server, and a Redis in
// memory. The name of the program selects the part, as in Argo CD's own
// binary, because the repo server runs argocd-git-ask-pass as a program of its own.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/alicebob/miniredis/v2"
	controller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	askpass "github.com/argoproj/argo-cd/v3/cmd/argocd-git-ask-pass/commands"
	reposerver "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
	server "github.com/argoproj/argo-cd/v3/cmd/argocd-server/commands"
	"github.com/spf13/cobra"
)

func main() {
	var command *cobra.Command
	switch filepath.Base(os.Args[0]) {
	case "argocd-application-controller":
		command = controller.NewCommand()
	case "argocd-repo-server":
		command = reposerver.NewCommand()
	case "argocd-server":
		command = server.NewCommand()
	case "argocd-git-ask-pass":
		command = askpass.NewCommand()
	case "argocd-redis":
		command = &cobra.Command{Use: "argocd-redis ADDRESS", Args: cobra.ExactArgs(1), RunE: serveRedis}
	default:
		fmt.Fprintln(os.Stderr, "run as argocd-application-controller, argocd-repo-server, argocd-server, argocd-git-ask-pass or argocd-redis")
		os.Exit(2)
	}
	if err := command.Execute(); err != nil {
		os.Exit(1)
	}
}

// serveRedis serves at an address until SIGTERM or SIGINT. Argo CD keeps manifests and
// resource trees there, which it can compute again.
func serveRedis(_ *cobra.Command, args []string) error {
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(args[0]); err != nil {
		return err
	}
	defer server.Close()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	<-ended
	return nil
}
