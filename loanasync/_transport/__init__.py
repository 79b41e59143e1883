"""Transports: each sends one HTTP request with aiohttp and returns the response, or why none arrived.

There are two, with the same behaviour unless a rule names one of them. `DirectTransport` (in `connection`)
opens connections, to which requests are written directly. `SessionTransport` (in `session`) calls
`ClientSession.request`. It is used with `direct_connections=False`, without httptools, with a version of
aiohttp that lacks the names in `aiohttp_internals`, and while other code replaces methods of `ClientSession`.
`selection` chooses between them. A user's session only provides its connector and its default headers: its
hooks, middlewares, cookies and agents see nothing.

The tests of the fault matrix check each fault on each transport, with own and user's sessions:

1. **Request.** Method, URL, headers and body are sent once and unchanged, with `Host`, `Content-Length` and
   the default headers of the user's session added. Redirects are not followed. Both transports send the same
   bytes, apart from the order of headers and `Connection: close`, which `SessionTransport` adds.
2. **Sent.** `Request.is_sent` is set before the first byte is written to the connection; `SessionTransport`
   sets it when a connection was found, or at the beginning while other code replaces methods. If no response
   arrives after that, the service may have evaluated the request: `NoResponse.is_sent` is True.
3. **Reuse.** A connection is reused only after a complete response, if the server did not ask to close it and
   sent no further data. After reading a response, the client calls its `judge` with what it shows about the
   connection. It is closed after an error, which may belong to another request. An approval reuses it only
   after a decision that named its customer. After a decision without a fiscal code on a reused connection,
   each approval has a new connection.
   An own connection is not reused after it was idle for 1 second, or for half of the time in the header
   `Keep-Alive` if that is shorter. The socket is checked for unread data before each reuse. If a reused
   connection proves unusable before anything was written, the request is sent on another.
   With a user's session, connections are opened through its connector, and count against its limit until they
   are closed. They never come from its pool and never return to it. `SessionTransport` closes each connection
   after its response.
4. **Early response.** A response that arrives before the request was written does not belong to it. The
   connection is aborted, and nothing is sent on it. `SessionTransport` cannot tell the two apart. Interim
   responses (1xx) are skipped.
5. **Body.** A response with an incomplete body keeps its status and the received part of the body;
   `Response.fault` names the reason. `SessionTransport` loses the status if a malformed body arrives together
   with the head. `Response.end` and `Response.is_followed` say how the response ended and if data follow.
   Bodies are decoded (gzip and deflate) up to 1 MiB. A response with a repeated `Content-Length` counts as
   malformed (RFC 9112 §6.3).
6. **Head.** A head may have 1,000 headers of 64 KiB each; head and body together may have 64 KiB more than
   1 MiB. A head that cannot be parsed counts as no response.
7. **Deadline.** `connect` limits the wait for a connection, `within` the whole request. If the event loop was
   blocked beyond the deadline, a response that arrived in time is still read.
8. **Cancellation.** If a call is cancelled before the first byte, nothing is sent. After the first byte, the
   connection is aborted, unless the call is an approval: then the response is read. While `SessionTransport`
   awaits the response to an approval, only the end of an event loop cancels it. Its outcome is then unknown.
9. **Closing.** `aclose` ends the requests in progress with the cause `SessionClosed`.
10. **Errors.** Exceptions are returned as `NoResponse`, without their text and traceback, which may contain
    personal data. The cause of one that is no error of the network, such as a time limit that a signal
    handler raised, begins with ``program:``. Only the AssertionError of a mock of aiohttp is raised.
"""
