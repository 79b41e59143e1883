"""Transports: each sends one HTTP request with aiohttp and returns the response, or why none arrived.

There are two, with the same behaviour. `DirectTransport` (in `fast`) writes requests directly to connections
of the session; its subclass `UsersPoolTransport` borrows them from the pool of a user's session.
`SessionTransport` (in `aiohttp_session`) sends requests through `ClientSession.request`. It is used with
`direct_connections=False`, with versions of aiohttp other than 3.14, while other code replaces methods of
`ClientSession`, and if a user's session changes a request or passes it to other code (`fast.obstacles` has
the list). `sessions` chooses between them.

All follow these rules. The tests of the fault matrix check each fault on each, with own and user's sessions:

1. **Request.** Method, URL, headers and body are sent once and unchanged, with `Host` and `Content-Length`
   added. Redirects are not followed, and middlewares of the session do not run. A user's session may add
   headers, cookies and a proxy. Both transports send the same bytes, apart from the order of headers and
   `Connection: close`, which `SessionTransport` adds.
2. **Sent.** `Request.is_sent` is set in the step that writes the first byte to the connection. If no response
   arrives after that, the service may have evaluated the request: `NoResponse.is_sent` is True.
3. **Reuse.** A connection is reused only after a complete response, if the server did not ask to close it and
   sent no further data. After an error, which may belong to another request, `Response.discard` closes it.
   An own connection is not reused after it was idle for 1 second, or for half of the time in the header
   `Keep-Alive` if that is shorter. The socket is checked for unread data before each reuse. If a reused
   connection proves unusable before anything was written, the request is sent on another.
   A connection of a user's pool returns to it after each exchange, with aiohttp's own protocol, and never
   serves requests of the user. `SessionTransport` sends each request on a new connection and closes it.
4. **Early response.** A response that arrives before the request was written does not belong to it. The
   connection is aborted, and nothing is sent on it. Interim responses (1xx) are skipped.
5. **Body.** A response with an incomplete body keeps its status and the received part of the body;
   `Response.fault` names the reason. Bodies are decoded (gzip and deflate) up to 1 MiB. A response with a
   repeated `Content-Length` counts as malformed (RFC 9112 §6.3).
6. **Head.** A head may have 1,000 headers of 64 KiB each. A head that cannot be parsed counts as no response.
7. **Deadline.** `connect` limits the wait for a connection, `within` the whole request. If the event loop was
   blocked beyond the deadline, a response that arrived in time is still read.
8. **Cancellation.** If the task is cancelled before the first byte, nothing is sent. After the first byte,
   the connection is aborted. If `Request.survives_cancellation` is set, the response is read and returned.
9. **Closing.** `aclose` ends the requests in progress with the cause `SessionClosed`.
10. **Errors.** I/O errors are returned as `NoResponse`, without their text and traceback, which may contain
    personal data.
"""
