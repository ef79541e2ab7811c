// Package cove is the root of a self-hosted server for the Sprites protocol, with
// gVisor inside, and of the tool that sends a repository into a sandbox, has an
// agent carry out a plan there, and brings the commits back.
//
// There is nothing to import here. The Go client is the package sprites; the
// programs are below cmd; ARCHITECTURE.md walks through the rest.
package cove
