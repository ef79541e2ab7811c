package server

import (
	_ "embed"
	"net/http"
)

// openAPI is the description of this API. A test makes it of the routes and the types of their
// bodies: go test ./internal/server -run TestOpenAPI -update.
//
//go:embed openapi.json
var openAPI []byte

// describeAPI answers with the description of this API.
func describeAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI) // a client that went away is nobody's error
	return nil
}
