// Command pause holds a pod's namespaces until it is told to end.
package main

import (
	"os/signal"

	"os"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
