package server_test

import (
	"maps"
	"slices"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/test/openapi"
	"github.com/cove-dev/cove/sprites"
)

type (
	op     = openapi.Operation
	params = []openapi.Param
)

func q(name, kind, text string) openapi.Param {
	return openapi.Param{Name: name, Type: kind, Description: text}
}

// needed marks a parameter without which the call is refused.
func needed(p openapi.Param) openapi.Param {
	p.Required = true
	return p
}

// The parameters that several routes have.
var (
	force   = q("force", "boolean", "Also if that loses work that nobody has pulled.")
	ifMatch = q("If-Match", "string", "The ETag that the object must still have; else nothing changes, and the status is 412.")
	ifNew   = q("If-None-Match", "string", "*: there must be no file of that name; else nothing changes, and the status is 412.")
	follow  = q("follow", "boolean", "Go on with what is added, until the caller leaves.")
	since   = q("since", "integer", "Milliseconds since 1970: older lines are left out.")
	logs    = params{follow, since}

	workingDir = q("workingDir", "string", "The folder from which a relative path starts; missing: the home folder.")
	asRoot     = q("asRoot", "boolean", "With the rights of root in the sprite.")
	duration   = q("duration", "string", "For how long the answer follows the service, such as 5s.")
)

// files has the query of a call about a file.
func files(more ...openapi.Param) params {
	return slices.Concat(params{needed(q("path", "string", "The file.")), workingDir, asRoot}, more)
}

// command has the query of an exec.
var command = params{
	needed(q("cmd", "string[]", "The program and its arguments, each by itself. No shell splits them.")),
	q("path", "string", "The program to run, if that is another than the first cmd."),
	q("stdin", "boolean", "Whether the command has standard input."),
	q("env", "string[]", "KEY=VALUE, over the sprite's environment."),
	q("dir", "string", "The working folder; missing: the home folder."),
	q("user", "string", "The user that runs it."),
	q("timeout", "string", "After this time the command is killed, such as 90s."),
	q("max_run_after_disconnect", "string", "How long the command may go on after its last client has left; 0s: for ever."),
}

// The bodies of the /fs family, as the guest reads and writes them.
type (
	fileTransfer struct {
		Source     string `json:"source"`
		Dest       string `json:"dest"`
		WorkingDir string `json:"workingDir,omitempty"`
		AsRoot     bool   `json:"asRoot,omitempty"`
	}
	fileRenamed struct {
		Source string `json:"source"`
		Dest   string `json:"dest"`
	}
	fileCopy struct {
		fileTransfer
		Recursive     *bool `json:"recursive,omitempty"`
		PreserveAttrs bool  `json:"preserveAttrs,omitempty"`
	}
	fileCopied struct {
		Copied     []fileRenamed `json:"copied"`
		Count      int           `json:"count"`
		TotalBytes int64         `json:"totalBytes"`
	}
	fileNamed struct {
		Path       string `json:"path,omitempty"`
		WorkingDir string `json:"workingDir,omitempty"`
		Recursive  *bool  `json:"recursive,omitempty"`
		AsRoot     bool   `json:"asRoot,omitempty"`
	}
	fileDeleted struct {
		Deleted []string `json:"deleted"`
		Count   int      `json:"count"`
	}
	fileChmod struct {
		fileNamed
		Mode any `json:"mode"`
	}
	fileChmodded struct {
		Affected []struct {
			Path string `json:"path"`
			Mode string `json:"mode"`
		} `json:"affected"`
		Count int `json:"count"`
	}
	fileChown struct {
		fileNamed
		UID any `json:"uid,omitempty"`
		GID any `json:"gid,omitempty"`
	}
	fileChowned struct {
		Affected []struct {
			Path string `json:"path"`
			UID  int    `json:"uid"`
			GID  int    `json:"gid"`
		} `json:"affected"`
		Count int `json:"count"`
	}
	execKill struct {
		Signal  string `json:"signal,omitempty"`
		Timeout string `json:"timeout,omitempty"`
	}
	policyAnswer struct {
		sprites.NetworkPolicy
		Presets *sprites.PresetRules `json:"presets,omitempty"`
	}
)

const oneSprite = "/v1/sprites/{name}"

// operations describes each route of the server, by its pattern.
func operations() map[string]op {
	all := map[string]op{}
	for _, group := range []map[string]op{serverOps, spriteOps, guestOps, checkpointOps, policyOps, imageOps, jobOps} {
		maps.Copy(all, group)
	}
	return all
}

var serverOps = map[string]op{
	"GET /v1/version":      {Summary: "Tell what server this is, and how it is", Answer: sprites.ServerInfo{}},
	"GET /v1/openapi.json": {Summary: "Get this document", Answer: map[string]any{}},
	"GET /v1/ws": {Summary: "Make requests, and be notified of changes", Only: true, Upgrade: &openapi.Socket{
		Details: "Messages are JSON texts. A request is {\"id\":1,\"method\":\"jobs.get\",\"params\":{\"id\":\"a3f7b2\"}}; its answer is {\"id\":1,\"result\":…} or {\"id\":1,\"error\":{…}}. " +
			"x-websocket-methods names the call of each method. The params are those of the path and the query, or of the path and the fields of the body, in one object. " +
			"The result is the call's answer, and the verb is the call's. A call that answers with lines sends {\"id\":1,\"line\":…} for each, and then a result null. Up to 16 requests are answered at once, in any order. " +
			"The method cancel with {\"request\":1} ends one. " +
			"The method subscribe (params Subscription, result Subscribed, verb read) asks for notifications: its topics are jobs, steps and progress (of the jobs' preparation), profiles, and environments; without topics it sends nothing. " +
			"The present state comes first, then {\"synced\":true}, and then the changes. A slow reader gets only the last state. " +
			"After a lost connection, send feed and the last seq as since: the changes since then come, or the result has gap, and the whole state comes again. Numbers stay valid after a restart of the server. " +
			"The server pings every 15 s.",
		Client: cove.SocketRequest{}, Server: cove.SocketMessage{}, Parts: []any{cove.Subscription{}, cove.Subscribed{}}, Methods: server.SocketMethods(),
	}},

	"GET /mcp":    {Summary: "Read the messages of an MCP session", Details: "The Streamable HTTP transport of the Model Context Protocol.", Answer: "", AnswerType: "text/event-stream", Query: mcpQuery},
	"POST /mcp":   {Summary: "Send an MCP message", Details: "The Streamable HTTP transport of the Model Context Protocol. The verb that a tool needs is decided call by call.", Request: map[string]any{}, Answer: map[string]any{}, Query: mcpQuery},
	"DELETE /mcp": {Summary: "End an MCP session"},

	"GET /v1/tokens":         {Summary: "List the tokens, without their secrets", Answer: cove.TokenList{}},
	"POST /v1/tokens":        {Summary: "Make a token", Details: "The secret is in this answer, and in no other.", Request: cove.TokenRequest{}, Status: 201, Answer: cove.Token{}},
	"DELETE /v1/tokens/{id}": {Summary: "Delete a token", Details: "Calls that use it end."},

	"GET /v1/secrets":             {Summary: "List the secrets, without their values", Answer: cove.SecretList{}},
	"PUT /v1/secrets/{secret}":    {Summary: "Store a secret", Details: "Sprites whose connectors use it have the new value at once.", Request: cove.SecretRequest{}},
	"DELETE /v1/secrets/{secret}": {Summary: "Delete a secret", Query: params{q("force", "boolean", "Also one that a job, a connector, a profile or a webhook needs.")}},

	"GET /v1/connectors":                       {Summary: "List the connectors", Answer: cove.ConnectorList{}},
	"GET /v1/connectors/{connector}":           {Summary: "Describe a connector", Answer: cove.Connector{}},
	"PUT /v1/connectors/{connector}":           {Summary: "Define a connector", Details: "The definition replaces the one of the same name, whose grants stay. The fields name, grants, created_at and updated_at are ignored.", Request: cove.Connector{}, Answer: cove.Connector{}},
	"DELETE /v1/connectors/{connector}":        {Summary: "Delete a connector and its grants"},
	"POST /v1/connectors/{connector}/grants":   {Summary: "Grant a connector to a sprite, a label or a job", Request: cove.ConnectorGrant{}},
	"DELETE /v1/connectors/{connector}/grants": {Summary: "Revoke a grant", Query: params{q("sprite", "string", "The sprite that has the grant."), q("label", "string", "The label that has it."), q("job", "string", "The job that has it.")}},

	"POST /v1/web/links":                {Summary: "Make a link that logs a browser in to the web page", Details: "The browser gets the rights of the token. The link works once.", Answer: cove.WebLink{}, Status: 201},
	"GET /v1/web/sessions":              {Summary: "List the browsers that are logged in by the token; with the verb admin, all", Answer: cove.WebSessionList{}},
	"DELETE /v1/web/sessions":           {Summary: "Log out all browsers that are logged in by the token; with the verb admin, all", Details: "Links that were not used yet are void."},
	"DELETE /v1/web/sessions/{session}": {Summary: "Log a browser out"},

	"GET /v1/webhooks":                 {Summary: "List the webhooks", Answer: cove.WebhookList{}},
	"PUT /v1/webhooks/{webhook}":       {Summary: "Define a webhook", Details: "The definition replaces the one of the same name, whose deliveries stay. Its deliveries have the body WebhookEvent.", Request: cove.Webhook{}, Answer: cove.Webhook{}},
	"DELETE /v1/webhooks/{webhook}":    {Summary: "Delete a webhook, and what waits to be sent to it"},
	"POST /v1/webhooks/{webhook}/test": {Summary: "Send an event at once, and tell what became of it", Answer: cove.WebhookDelivery{}},
	"GET /v1/webhooks/{webhook}/log":   {Summary: "Read what became of the deliveries to a webhook", Query: params{q("limit", "integer", "How many, the newest first; missing: as many as are kept.")}, Answer: cove.WebhookLog{}},

	"GET /v1/backends":                     {Summary: "List the servers elsewhere that this one knows", Answer: cove.BackendList{}},
	"PUT /v1/backends/{backend}":           {Summary: "Name a server elsewhere, with its token", Request: cove.BackendRequest{}},
	"DELETE /v1/backends/{backend}":        {Summary: "Forget a server elsewhere"},
	"/v1/backends/{backend}/{rest...}":     {Summary: "Pass a call on to a server elsewhere", Details: "The rest of the path is that server's, and so is the answer. The token is replaced by that server's.", Answer: map[string]any{}},
	oneSprite + "/policy":                  {Skip: "not available here"},
	oneSprite + "/policy/{rest...}":        {Skip: "not available here"},
	"GET /v1/installs":                     {Summary: "List the installations of agents that sprites share", Answer: cove.AgentInstallList{}},
	"GET " + oneSprite + "/sandbox/logs":   {Summary: "Read the runtime's logs of a sprite's sandbox", Answer: sprites.SandboxLogs{}},
	"GET " + oneSprite + "/connectors/log": {Summary: "Read what a sprite asked of its connectors", Query: logs, Answer: cove.ConnectorEvent{}, AnswerType: openapi.NDJSON},
}

var mcpQuery = params{
	q("sprite", "string", "The only sprite that the session may use."), q("prefix", "string", "The names of the sprites that it may use begin so."),
	q("role", "string[]", "Which tools it has."), q("dir", "string", "The folder that its tools start in."),
}

var spriteOps = map[string]op{
	"GET /v1/sprites": {
		Summary: "List the sprites", Details: "A page of them. With Accept: application/x-ndjson the answer is a stream of StateEvent lines: first one for each sprite, then one for each change.",
		Query: params{
			q("prefix", "string", "Only names that begin so."), q("label", "string", "Only sprites with this label."),
			q("state", "string", "Only sprites that are running, warm or cold; held: that may not run now."), q("q", "string", "Only sprites with this text in their name or a label."),
			q("max_results", "integer", "The size of a page."), q("continuation_token", "string", "The next_continuation_token of the page before."),
		},
		Answer: sprites.ListResponse{}, Lines: sprites.StateEvent{},
	},
	"POST /v1/sprites": {
		Summary: "Make a sprite", Details: "It is cold; its first use boots it.", Request: sprites.CreateRequest{}, Status: 201, Answer: sprites.Info{},
		Lenient: "As the Sprites protocol wants it, the fields runtime and wait_for_capacity, and unknown fields of config, are accepted and ignored.",
	},
	"POST /v1/sprites/import": {
		Summary: "Make a sprite of an archive", Details: "The body is what export gave.", RequestType: sprites.ArchiveType,
		Query:  params{q("name", "string", "The new sprite's name; missing: the archive's."), q("label", "string[]", "Its labels."), q("max_size", "integer", "Refuse more bytes than this.")},
		Status: 201, Answer: sprites.Imported{},
	},
	"GET " + oneSprite:               {Summary: "Describe a sprite", Details: "It is not woken. The ETag changes with what PUT changes.", Answer: sprites.Info{}},
	"PUT " + oneSprite:               {Summary: "Change a sprite", Details: "Fields that are missing keep their value.", Headers: params{ifMatch}, Request: sprites.UpdateRequest{}, Answer: sprites.Info{}},
	"DELETE " + oneSprite:            {Summary: "Delete a sprite and its disk", Query: params{force}},
	"GET " + oneSprite + "/stats":    {Summary: "Tell what a sprite has used in the last hour", Details: "It is not woken. Samples are taken each minute while it is awake, and kept in memory.", Answer: sprites.Stats{}},
	"GET " + oneSprite + "/check":    {Summary: "Ask a sprite for a sign of life", Details: "It is not woken.", Answer: cove.Check{}},
	"POST " + oneSprite + "/visit":   {Summary: "Make a link that lets a browser enter a sprite's URL", Request: sprites.VisitRequest{}, Status: 201, Answer: sprites.Visit{}},
	"POST " + oneSprite + "/restart": {Summary: "End a sprite's sandbox", Details: "All that runs in it ends. The next use starts another sandbox over the same disk.", Answer: sprites.RestartResult{}},
	"POST " + oneSprite + "/upgrade": {Summary: "End a sprite's sandbox, so that the next has this server's programs", Answer: sprites.Info{}},
	"POST " + oneSprite + "/suspend": {Summary: "Put a sprite to sleep", Answer: sprites.Info{}},
	"POST " + oneSprite + "/wake":    {Summary: "Wake a sprite, and wait until it is awake", Answer: sprites.Info{}},
	"POST " + oneSprite + "/fork":    {Summary: "Copy a sprite", Details: "With names, several; the answer is a list then.", Request: sprites.ForkRequest{}, Status: 201, Answer: sprites.Info{}, Also: sprites.ListResponse{}},
	"GET " + oneSprite + "/export": {
		Summary: "Get a sprite as an archive", Details: "An answer that breaks off is no archive.", AlsoVerbs: []string{"read"},
		Query:      params{q("checkpoint", "string", "This state; missing: the present one."), q("environment", "boolean", "With the values of its variables.")},
		AnswerType: sprites.ArchiveType,
	},
}

var guestOps = map[string]op{
	"GET " + oneSprite + "/exec": {
		Summary: "List the sessions; with an upgrade, run a command",
		Upgrade: &openapi.Socket{
			Details: "With Upgrade: websocket it starts a command (verb exec). Without a terminal, a binary message begins with a byte for its stream: 0 standard input, 1 standard output, 2 standard error, 3 the end with the exit code in the next byte, 4 the end of standard input. With a terminal, binary messages are its bytes. A stream without an end message is not a finished command.",
			Client:  sprites.Message{}, Server: sprites.Message{},
		},
		Query: slices.Concat(optionalParams(command), params{
			q("tty", "boolean", "Give the command a terminal."), q("rows", "integer", "The terminal's height."), q("cols", "integer", "The terminal's width."), q("id", "string", "Attach to this session instead."),
		}),
		Answer: sprites.SessionList{},
	},
	"HEAD " + oneSprite + "/exec": {Summary: "Ask for the server's version, in the header Sprite-Version", Status: 200},
	"POST " + oneSprite + "/exec": {
		Summary: "Run a command, and get its output",
		Details: "The answer is a stream of frames without length: a byte for the stream (1 standard output, 2 standard error), then bytes. Each frame is one chunk of the HTTP answer. The last frame has two bytes: 3, and the exit code. With stdin=true the request's body is the command's standard input.",
		Query:   command, RequestType: openapi.Bytes, Optional: true, AnswerType: openapi.Bytes,
	},
	"GET " + oneSprite + "/exec/{id}":       {Summary: "Describe a session; with an upgrade, attach to it", Answer: sprites.Session{}, Upgrade: &openapi.Socket{Details: "With Upgrade: websocket, messages are those of an exec, and the output so far comes first.", Client: sprites.Message{}, Server: sprites.Message{}}},
	"POST " + oneSprite + "/exec/{id}/kill": {Summary: "Send a signal to a session, and see to its end", Query: params{q("signal", "string", "Its name; missing: TERM."), q("timeout", "string", "How long to wait before KILL; 0s: for ever.")}, Request: execKill{}, Optional: true, Answer: sprites.KillEvent{}, AnswerType: openapi.NDJSON},
	"GET " + oneSprite + "/proxy":           {Summary: "Connect to a port or a socket in a sprite", Only: true, Upgrade: &openapi.Socket{Details: "The first message of the client is a text that names the target. The server answers with a text. After that binary messages are the connection's bytes.", Client: sprites.ProxyInit{}, Server: sprites.ProxyStatus{}}},
	"GET " + oneSprite + "/ports/watch":     {Summary: "Watch the ports that are listened on", Only: true, Upgrade: &openapi.Socket{Details: "The first message has all ports, each later one a PortEvent.", Server: sprites.PortList{}}},

	"GET " + oneSprite + "/fs/read":      {Summary: "Read a file", Query: files(q("start", "integer", "The first byte."), q("end", "integer", "The byte after the last.")), Details: "The answer has an ETag, which changes with the file.", AnswerType: openapi.Bytes},
	"GET " + oneSprite + "/fs/list":      {Summary: "List a folder", Details: "Of a file, the file itself.", Query: files(q("recursive", "boolean", "Also the folders below."), q("pattern", "string", "Only names that match this glob."), q("limit", "integer", "At most so many entries, folders first; count says how many there are."), q("stat", "boolean", "Describe the folder itself, or the link; the entry then has an ETag, which may also change with a checkpoint or a boot.")), Answer: sprites.ListFiles{}},
	"GET " + oneSprite + "/fs/watch":     {Summary: "Watch files for changes", Only: true, Upgrade: &openapi.Socket{Details: "The client subscribes to paths; the server tells of changes.", Client: sprites.WatchRequest{}, Server: sprites.WatchMessage{}}},
	"PUT " + oneSprite + "/fs/write":     {Summary: "Write a file", Query: files(q("mode", "string", "Its permission bits, in octal."), q("mkdirParents", "boolean", "Make the folders above it; missing: true.")), Headers: params{ifMatch, ifNew}, RequestType: openapi.Bytes, Answer: sprites.WriteResult{}},
	"DELETE " + oneSprite + "/fs/delete": {Summary: "Delete a file or folder", Details: "The parameters may stand in the query or in the body.", Query: optionalParams(files(q("recursive", "boolean", "With all that is in it."))), Headers: params{ifMatch}, Request: fileNamed{}, Optional: true, Answer: fileDeleted{}},
	"POST " + oneSprite + "/fs/rename":   {Summary: "Rename a file or folder", Headers: params{ifMatch, ifNew}, Request: fileTransfer{}, Answer: fileRenamed{}},
	"POST " + oneSprite + "/fs/copy":     {Summary: "Copy a file or folder", Details: "Without recursive false, a folder is copied with all that is in it.", Request: fileCopy{}, Answer: fileCopied{}},
	"POST " + oneSprite + "/fs/chmod":    {Summary: "Set permission bits", Details: "The mode is octal text, or its value as a number.", Request: fileChmod{}, Answer: fileChmodded{}},
	"POST " + oneSprite + "/fs/chown":    {Summary: "Set an owner and a group", Details: "Each is a number or a name; a missing one stays.", Request: fileChown{}, Answer: fileChowned{}},

	"GET " + oneSprite + "/services":                    {Summary: "List the services", Answer: []sprites.Service{}},
	"POST " + oneSprite + "/services/signal":            {Summary: "Send a signal to a service", Request: sprites.ServiceSignal{}},
	"GET " + oneSprite + "/services/{service}":          {Summary: "Describe a service", Answer: sprites.Service{}},
	"PUT " + oneSprite + "/services/{service}":          {Summary: "Define a service, and start it", Details: "The fields name and state are ignored.", Query: params{duration}, Request: sprites.Service{}, Answer: sprites.ServiceEvent{}, AnswerType: openapi.NDJSON},
	"DELETE " + oneSprite + "/services/{service}":       {Summary: "Stop and delete a service"},
	"POST " + oneSprite + "/services/{service}/start":   {Summary: "Start a service", Query: params{duration}, Answer: sprites.ServiceEvent{}, AnswerType: openapi.NDJSON},
	"POST " + oneSprite + "/services/{service}/stop":    {Summary: "Stop a service", Query: params{q("timeout", "string", "How long to wait before KILL.")}, Answer: sprites.ServiceEvent{}, AnswerType: openapi.NDJSON},
	"POST " + oneSprite + "/services/{service}/restart": {Summary: "Restart a service", Query: params{duration}, Answer: sprites.ServiceEvent{}, AnswerType: openapi.NDJSON},
	"GET " + oneSprite + "/services/{service}/logs":     {Summary: "Read the output of a service", Query: params{q("lines", "integer", "How many of its last lines."), duration}, Answer: sprites.ServiceEvent{}, AnswerType: openapi.NDJSON},
}

// optionalParams are the same parameters, none of them required.
func optionalParams(list params) params {
	list = slices.Clone(list)
	for i := range list {
		list[i].Required = false
	}
	return list
}

var checkpointOps = map[string]op{
	"POST " + oneSprite + "/checkpoint": {
		Summary: "Make a checkpoint", Request: sprites.CheckpointRequest{}, Optional: true, Answer: sprites.CheckpointEvent{}, AnswerType: openapi.NDJSON,
		Lenient: "As the Sprites protocol wants it, a field id is accepted and ignored.",
	},
	"GET " + oneSprite + "/checkpoints":                       {Summary: "List the checkpoints", Details: "The present state comes first.", Query: params{q("includeAuto", "boolean", "Also those that nobody asked for."), q("history", "string", "Only this checkpoint, and those that it grew from.")}, Answer: []sprites.Checkpoint{}},
	"POST " + oneSprite + "/checkpoints/verify":               {Summary: "Read checkpoints, and tell what is damaged", Query: params{q("checkpoint", "string", "Only this one.")}, Answer: sprites.VerifyLine{}, AnswerType: openapi.NDJSON},
	"POST " + oneSprite + "/checkpoints/prune":                {Summary: "Delete old checkpoints", Request: sprites.PruneRequest{}, Answer: sprites.PruneResult{}},
	"GET " + oneSprite + "/checkpoints/{checkpoint}":          {Summary: "Describe a checkpoint", Answer: sprites.Checkpoint{}},
	"GET " + oneSprite + "/checkpoints/{checkpoint}/diff":     {Summary: "List the files that differ from a checkpoint", Query: params{q("to", "string", "The other state; missing: the present one.")}, Answer: sprites.DiffLine{}, AnswerType: openapi.NDJSON},
	"DELETE " + oneSprite + "/checkpoints/{checkpoint}":       {Summary: "Delete a checkpoint"},
	"POST " + oneSprite + "/checkpoints/{checkpoint}/restore": {Summary: "Bring a sprite back to a checkpoint", Request: sprites.RestoreRequest{}, Optional: true, Answer: sprites.CheckpointEvent{}, AnswerType: openapi.NDJSON},
}

var policyOps = map[string]op{
	"GET " + oneSprite + "/policy/network":  {Summary: "Read the network policy", Query: params{q("presets", "boolean", "With the rules that its presets stand for.")}, Answer: policyAnswer{}},
	"POST " + oneSprite + "/policy/network": {Summary: "Replace the network policy", Headers: params{ifMatch}, Request: sprites.NetworkPolicy{}},
	"GET " + oneSprite + "/policy/test":     {Summary: "Ask what the policy would do with a destination", Query: params{needed(q("target", "string", "A host, with or without a port."))}, Answer: sprites.PolicyDecision{}},
	"GET " + oneSprite + "/policy/log":      {Summary: "Read what a sprite was refused", Query: slices.Concat(logs, params{q("connections", "boolean", "Also the connections that it made.")}), Answer: sprites.NetworkEvent{}, AnswerType: openapi.NDJSON},
}

var imageOps = map[string]op{
	"GET /v1/images":               {Summary: "List the images", Query: params{q("all", "boolean", "Also the steps of builds, which have no name.")}, Answer: cove.ImageList{}},
	"GET /v1/images/{image...}":    {Summary: "Describe an image", Answer: cove.Image{}},
	"DELETE /v1/images/{image...}": {Summary: "Remove a name of an image, or the image"},
	"POST /v1/images/pull":         {Summary: "Get an image from a registry", Request: cove.ImagePull{}, Answer: cove.ImageEvent{}, AnswerType: openapi.NDJSON},
	"POST /v1/images/import":       {Summary: "Take an image from an archive", Query: params{q("name", "string", "The name that it gets; of an archive of several images, the one that is taken."), q("several", "boolean", "Without a name: all images of the archive.")}, RequestType: cove.ImageArchiveType, Answer: cove.ImageEvent{}, AnswerType: openapi.NDJSON},
	"POST /v1/images/build":        {Summary: "Build an image of a Dockerfile", Details: "The body is a line of JSON (ImageBuild), and after it the context as a tar archive.", RequestType: openapi.Bytes, Answer: cove.ImageBuildEvent{}, AnswerType: openapi.NDJSON},
	"POST /v1/images/prune":        {Summary: "Remove images that nothing uses, and the caches of builds", Request: cove.ImagePruning{}, Answer: cove.ImagePruned{}},
	"POST /v1/images/save":         {Summary: "Get images as an archive", Request: cove.ImageSave{}, AnswerType: cove.ImageArchiveType},
	"POST /v1/images/tag":          {Summary: "Give an image one more name", Request: cove.ImageTag{}, Answer: cove.Image{}},
	"POST /v1/images/push":         {Summary: "Send an image to its registry", Request: cove.ImagePush{}, Answer: cove.ImageEvent{}, AnswerType: openapi.NDJSON},
	"POST /v1/images/commit":       {Summary: "Make an image of a sprite's disk", Request: cove.ImageCommit{}, Answer: cove.ImageEvent{}, AnswerType: openapi.NDJSON},
}

// begins are the verbs that a call needs, besides its route's, if an agent runs commands by it.
var begins = []string{"exec"}

var environmentQuery = params{q("state", "string[]", "Only those in one of these states; missing: all but gone."), q("profile", "string", "Only those of jobs of this profile."), q("backend", "string", "Only those of this backend; empty: of this server.")}

var jobOps = map[string]op{
	"GET /v1/profiles":                  {Summary: "List the profiles", Details: "Only a token with the verb admin sees the values of their variables.", Answer: cove.ProfileList{}},
	"GET /v1/profiles/{profile}":        {Summary: "Describe a profile", Answer: cove.Profile{}},
	"PUT /v1/profiles/{profile}":        {Summary: "Store a profile", Details: "It is checked by the job that it would make. With the header If-Match, only the profile that has that revision is replaced.", Request: cove.ProfileSettings{}, Answer: cove.ProfilePut{}},
	"DELETE /v1/profiles/{profile}":     {Summary: "Delete a profile", Details: "Jobs that were made with it go on."},
	"PUT /v1/default-profile":           {Summary: "Set the default profile, for pushes that name none", Details: "An empty name is none. A request for a job that names no profile has none.", Request: cove.DefaultProfile{}},
	"POST /v1/profiles/{profile}/apply": {Summary: "Give running jobs of a profile its current network policy", Details: "A sprite whose rules somebody has set since keeps them.", Query: params{q("force", "boolean", "Replace those rules, too.")}, Answer: cove.ProfileApplied{}},

	"GET /v1/executors":          {Summary: "Tell which places for jobs can be used now", Details: "Each is asked for a page of its sprites, for 10 s at most.", Answer: cove.ExecutorList{}},
	"GET /api/v1/sprites/status": {Summary: "Tell which places for jobs can be used now", Details: "Another name of GET /v1/executors.", Answer: cove.ExecutorList{}},
	"POST /api/v1/sprites/test":  {Summary: "Test a place where jobs work", Details: "Another name of POST /v1/executors/test.", Request: cove.ExecutorTest{}, Answer: cove.ExecutorNews{}, AnswerType: openapi.NDJSON},

	"POST /v1/executors/test": {Summary: "Test a place where jobs work", Details: "The answer has a line when a step begins and when it ends; the last line has over. The server removes the sprite of the test, also if the answer is not read to its end. A token in the request is not kept.", Request: cove.ExecutorTest{}, Answer: cove.ExecutorNews{}, AnswerType: openapi.NDJSON},

	"GET /api/v1/sprites/instances":                  {Summary: "List the environments, the newest first", Details: "Another name of GET /v1/environments.", Query: environmentQuery, Answer: cove.EnvironmentList{}},
	"DELETE /api/v1/sprites/instances/{environment}": {Summary: "Destroy an environment", Details: "Another name of DELETE /v1/environments/{environment}.", Query: params{force}, Answer: cove.Environment{}},
	"POST /api/v1/sprites/instances/destroy":         {Summary: "Destroy several environments, or all", Details: "Another name of POST /v1/environments/destroy.", Request: cove.EnvironmentDestroy{}, Answer: cove.EnvironmentDestroyed{}},

	"GET /v1/environments":                  {Summary: "List the environments, the newest first", Query: environmentQuery, Answer: cove.EnvironmentList{}},
	"GET /v1/environments/orphans":          {Summary: "List the orphans", Details: "Sprites that this server made for jobs, here and at backends, that are at least ten minutes old and that no environment has. Each place is asked now.", Answer: cove.OrphanList{}},
	"POST /v1/environments/orphans/destroy": {Summary: "Destroy orphans, by their names, or all", Details: "Each for itself, with a result each. The server looks again, before it deletes one, whether it made it and nothing has it.", Request: cove.OrphanDestroy{}, Answer: cove.OrphansDestroyed{}},
	"GET /v1/environments/{environment}":    {Summary: "Describe an environment", Answer: cove.Environment{}},
	"DELETE /v1/environments/{environment}": {Summary: "Destroy an environment", Details: "One in which a job works, or that has work which nobody has pulled, is refused without force. The state in the answer is gone, or destroying: then the server tries again.", Query: params{force}, Answer: cove.Environment{}},
	"POST /v1/environments/destroy":         {Summary: "Destroy several environments, or all", Details: "Each for itself, with a result each.", Request: cove.EnvironmentDestroy{}, Answer: cove.EnvironmentDestroyed{}},

	"GET /v1/jobs": {Summary: "List the jobs, the newest first", Query: params{q("sprite", "string", "Only jobs in this sprite."), q("backend", "string", "The server elsewhere that has the sprite."), q("state", "string[]", "Only jobs in one of these states."),
		q("group", "string", "Only jobs of this group: needs (a person), working, review, done."), q("q", "string", "Only jobs with this text in their ID, sprite, plan's name, repository, branch, URL, agent or profile."),
		q("label", "string", "Only jobs whose sprite, on this server, has this label."), q("profile", "string", "Only jobs of this profile."), q("repository", "string", "Only jobs in the repository of this name."),
		q("by", "string", "Only jobs that this token (by ID) asked for; owner: the server's owner; me: who asks."), q("of", "string", "Only jobs that do this job again, or go on with it."),
		q("limit", "integer", "How many jobs the answer has at most; missing: 1000, which is the most."), q("after", "string", "The next of the page before."), q("counts", "boolean", "Count the jobs of each group.")}, Answer: cove.JobList{}},
	"POST /v1/jobs":                 {Summary: "Make a job", Details: "It begins when its bundle is in the sprite and it is started.", Request: cove.JobRequest{}, Status: 201, Answer: cove.Job{}, AlsoVerbs: begins},
	"POST /v1/jobs/preview":         {Summary: "Tell what a job would be", Details: "Nothing is made.", Request: cove.JobRequest{}, Answer: cove.JobPreview{}, AlsoVerbs: begins},
	"GET /v1/jobs/{id}":             {Summary: "Describe a job, or wait for it", Query: params{q("wait", "string", "Answer when the job has ended, or after this time (such as 30s; one minute at most)."), q("while", "string", "With wait: answer also when the job is in another state than this.")}, Answer: cove.Job{}},
	"DELETE /v1/jobs/{id}":          {Summary: "Delete a job", Query: params{force}},
	"GET /v1/jobs/{id}/plan":        {Summary: "Tell what the agent of a job was told", Details: "The plan, or the message with which the job goes on from another one. Of a job whose settings were sealed with a key that was lost, there is none (not_kept).", Answer: cove.JobPlan{}},
	"GET /v1/jobs/{id}/events":      {Summary: "Read the events of a job", Query: params{q("from", "integer", "The number of the first one; missing: 1."), q("follow", "boolean", "Go on until the job has ended.")}, Answer: cove.JobEvent{}, AnswerType: openapi.NDJSON},
	"GET /v1/jobs/{id}/steps":       {Summary: "Tell how far the preparation of a job is", Details: "With follow, a line for each change (StepNews), the first with a snapshot; the last has over.", Query: params{q("follow", "boolean", "Go on until the preparation is over.")}, Answer: cove.JobSteps{}, Lines: cove.StepNews{}},
	"GET /v1/jobs/{id}/diff":        {Summary: "Tell what a job has changed", Details: "The server asks git in the sprite, and wakes the sprite for that. If the job has ended, the diff has its commits, which a pull brings; else its files as they are. At most 2 MiB, 500 files, and 2,000 bytes of a line.", Query: params{q("part", "string", "leftover: what the agent of a job that has ended left uncommitted, compared with its last commit; missing: what a pull brings.")}, Answer: cove.JobDiff{}},
	"GET /v1/jobs/{id}/comments":    {Summary: "List the comments on what a job has changed", Answer: cove.JobComments{}},
	"POST /v1/jobs/{id}/comments":   {Summary: "Comment on a line of what a job has changed", Details: "The server keeps it until it is deleted, or the job is. At most 500 a job. It is not sent to the agent.", Request: cove.JobComment{}, Status: 201, Answer: cove.JobComment{}},
	"DELETE /v1/jobs/{id}/comments": {Summary: "Delete comments on what a job has changed", Details: "All of them, if no id is given.", Query: params{q("id", "integer[]", "The comments, by their ids.")}},
	"POST /v1/jobs/{id}/start":      {Summary: "Start a job whose bundle is in place", Request: cove.JobStart{}, Answer: cove.Job{}},
	"POST /v1/jobs/{id}/stop":       {Summary: "Stop a job", Details: "Its work so far is still collected.", Answer: cove.Job{}},
	"POST /v1/jobs/{id}/send":       {Summary: "Send a message to a job's agent", Request: cove.JobMessage{}, Answer: cove.Job{}},

	"POST /v1/jobs/{id}/answer":  {Summary: "Answer the question of a job's agent", Request: cove.JobAnswer{}, Answer: cove.Job{}},
	"POST /v1/jobs/{id}/retry":   {Summary: "Do a job again from its beginning", Request: cove.JobRetry{}, Status: 201, Answer: cove.Job{}, AlsoVerbs: begins},
	"POST /v1/jobs/{id}/resume":  {Summary: "Resume the agent of a job that has ended", Request: cove.JobResume{}, Status: 201, Answer: cove.Job{}, AlsoVerbs: begins},
	"POST /v1/jobs/{id}/publish": {Summary: "Publish the commits of a job again, after that has failed", Details: "It answers at once: published in the job shows the result. Commits that are published, or being published, stay as they are.", Answer: cove.Job{}},
	"POST /v1/jobs/{id}/pulled":  {Summary: "Note that a job's work was pulled", Request: cove.JobPulled{}, Answer: cove.Job{}},
	"POST /v1/jobs/{id}/seen":    {Summary: "Note that a person has seen how a job ended", Details: "It is then in the group done.", Answer: cove.Job{}},
	"DELETE /v1/jobs/{id}/seen":  {Summary: "Take back that a person has seen how a job ended", Details: "It is again in the group that it was in.", Answer: cove.Job{}},
	"GET /v1/search":             {Summary: "Find jobs, sprites, commits and lines of logs", Details: "Commits are found by the beginning of their hash. Logs are looked through from the newest job on, 100,000 events and 3 seconds at most.", Query: params{needed(q("q", "string", "The text, of 2 to 200 bytes."))}, Answer: cove.Found{}},
	"POST /v1/jobs/gc":           {Summary: "Delete jobs that nobody needs any more, and their sprites", Request: cove.JobGC{}, Answer: cove.JobGCResult{}},
}
