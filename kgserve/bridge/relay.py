"""Both ways between the editor and the server, and on with the next server when one goes."""

from __future__ import annotations

import http.client
import threading

from kgserve.bridge.crew import Crew
from kgserve.bridge.flights import Flight, Flights
from kgserve.bridge.message import (
    ACKNOWLEDGED,
    CANCELLED,
    INITIALIZE,
    INITIALIZED,
    LISTEN,
    NO_SERVER,
    Kind,
    Malformed,
    Message,
    answered,
    failure,
    is_result,
    method_of,
    parse,
)
from kgserve.bridge.output import Output, say
from kgserve.bridge.servers import Servers
from kgserve.bridge.session import Handshake, Refused, Session, headers
from kgserve.bridge.wire import BROKEN, Call, Wire, explanation
from kgserve.idempotent import WHERE_TO_LOOK
from kgserve.launch import LaunchFailed, Server

ATTEMPTS = 3
"""Times that a request is sent before its failure is reported; one that may have been carried out is sent again only
if done twice is done once."""

RETRY_DELAY = 0.3
"""Seconds before the second repetition; the first one is made at once."""

LISTEN_DELAY = 1.0
"""Seconds between attempts to listen again."""


class NotDone(Exception):
    """The server has not carried a request out, for a reason that passes: it is stopping, or another one by now."""


class OutcomeUnknown(Exception):
    """A request may have been carried out, and would be another time if it was sent again."""

    def __init__(self, message: Message, server: Server) -> None:
        look = WHERE_TO_LOOK.get(message.tool or "", "the tools that read show what is there")
        super().__init__(
            f"the connection to the server at {server.url} broke before {message.tool or 'the tool'} was answered, so "
            "it is unknown whether it was carried out. It was not sent again, for it would then be done twice. "
            f"Before you call it again, look: {look}"
        )


class Relay:
    """Carries the editor's messages to the server and the server's to the editor."""

    def __init__(self, servers: Servers, output: Output, store: str | None = None) -> None:
        self._servers = servers
        self._output = output
        self._common = {"Kgserve-Store": store} if store else {}
        self._wire = Wire()
        self._handshake = Handshake(self._wire, self._common)
        self._crew = Crew()
        self._flights = Flights()
        self._closing = threading.Event()
        self._listening: threading.Thread | None = None

    def take(self, line: bytes) -> None:
        """A line from the editor. What later messages build upon is done before it returns."""
        try:
            message = parse(line)
        except Malformed as error:
            self._output.write(failure(None, error.code, str(error)))
            return
        match message.kind:
            case Kind.REQUEST:
                self._take_request(message)
            case Kind.NOTIFICATION if message.method == CANCELLED:
                self._cancel(message)
            case Kind.NOTIFICATION if message.method == INITIALIZED:
                self._handshake.completed(message.line)
                self._pass_on(message)
                self._listen()
            case _:
                self._crew.give(lambda: self._pass_on(message))

    def close(self, patience: float) -> None:
        """Wait ``patience`` seconds for the answers that are due, then end the session."""
        self._flights.wait(patience)
        self._closing.set()
        self._handshake.end()

    def _take_request(self, message: Message) -> None:
        flight = self._flights.open(message)
        if message.method == INITIALIZE:
            self._answer(flight)
        elif not self._crew.give(lambda: self._answer(flight)):
            self._report(flight, "too many requests are waiting for an answer")
            self._flights.close(flight)

    def _answer(self, flight: Flight) -> None:
        """Have a request answered, by the server or with the reason why it cannot be."""
        try:
            self._try_to_answer(flight)
        except (LaunchFailed, OutcomeUnknown, Refused) as error:
            self._report(flight, str(error))
        except Exception as error:  # noqa: BLE001 - the outermost place of a thread: the editor must get an answer
            self._report(flight, f"a defect in the bridge: {type(error).__name__}: {error}")
        finally:
            self._flights.close(flight)

    def _try_to_answer(self, flight: Flight) -> None:
        attempts = 0
        server = self._servers.current()
        while not flight.cancelled and not self._closing.is_set():
            try:
                self._exchange(flight, server)
                return
            except (*BROKEN, NotDone) as error:
                self._servers.lost(server)
                self._closing.wait(attempts * RETRY_DELAY)
                attempts += 1
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
            if flight.message.method == LISTEN:
                server = self._awaited(flight) or server
            elif attempts < ATTEMPTS and not flight.cancelled:
                server = self._servers.current()
            else:
                self._report(flight, f"the server at {server.url} failed {attempts} times ({reason})")
                return

    def _exchange(self, flight: Flight, server: Server) -> None:
        """Send a request and write its answer, and what comes before it.

        Raises NotDone, Refused or BROKEN, after which it may be sent again, and OutcomeUnknown, after which it may not.
        """
        message = flight.message
        handshake = message.version is None and message.method != INITIALIZE
        session = self._handshake.session(server) if handshake else None
        call = Call(self._wire, server, fresh=not message.repeatable)
        flight.boards(call)
        try:
            call.send("POST", self._headers(server, session) | message.routing, message.line)
            answer = self._streamed(call, flight) if call.is_stream else self._whole(call, message, server, session)
            if message.method == INITIALIZE:
                self._handshake.adopt(server, message.line, call, answer)
            self._output.write(answer)
        except BROKEN as error:
            if call.sent and not message.repeatable:
                self._servers.lost(server)
                raise OutcomeUnknown(message, server) from error
            raise
        finally:
            call.finish()

    def _streamed(self, call: Call, flight: Flight) -> bytes:
        """The answer in an event stream; what comes before it is passed on."""
        message = flight.message
        for text in call.events():
            answer = answered(text, message.id)
            if answer is None:
                self._pass_back(flight, text)
            elif message.method == LISTEN and is_result(answer):
                raise NotDone("it is stopping, which is the only end of listening")
            else:
                return answer
        raise http.client.IncompleteRead(b"")

    def _pass_back(self, flight: Flight, text: bytes) -> None:
        """Write what comes before an answer; that a listener is listening is said once, not by each server."""
        if method_of(text) == ACKNOWLEDGED:
            if flight.acknowledged:
                return
            flight.acknowledged = True
        self._output.write(text)

    def _whole(self, call: Call, message: Message, server: Server, session: Session | None) -> bytes:
        """The answer that is a document."""
        text = call.body()
        answer = answered(text, message.id)
        self._check_done(call.response.status, session, is_answer=answer is not None)
        return answer or failure(message.id, NO_SERVER, explanation(server, call.response, text))

    def _check_done(self, status: int, session: Session | None, *, is_answer: bool) -> None:
        match status:
            case http.client.UNAUTHORIZED:
                raise NotDone("it needs a valid key: give one as KGSERVE_KEY or with --key")
            case http.client.NOT_FOUND if session is not None:
                self._handshake.lost(session)
                raise NotDone("it does not know the session")
            case http.client.SERVICE_UNAVAILABLE if not is_answer:
                raise NotDone("it is stopping")
            case _:
                pass

    def _pass_on(self, message: Message) -> None:
        """Send what is not answered: notifications, and answers to the server's own requests.

        Without a handshake there is nobody who would take them, and a server that is not there has nothing to learn.
        """
        server = self._servers.present() if self._handshake.made else None
        if server is None:
            return
        call = Call(self._wire, server)
        try:
            call.send("POST", self._headers(server, self._handshake.session(server)), message.line)
            call.body()
        except (*BROKEN, Refused) as error:
            say(f"{message.method or 'an answer'} was not delivered: {error}")
        finally:
            call.finish()

    def _cancel(self, message: Message) -> None:
        """The editor no longer waits for a request; what has been answered already is left alone."""
        flight = self._flights.find(message.params.get("requestId"))
        if flight is None:
            return
        if flight.message.version is not None:
            flight.abort()
            return
        flight.cancelled = True
        self._crew.give(lambda: self._pass_on(message))

    def _listen(self) -> None:
        """Open the stream of what the server says by itself, once."""
        if self._listening is None:
            self._listening = threading.Thread(target=self._keep_listening, name="kgserve-bridge-listen", daemon=True)
            self._listening.start()

    def _keep_listening(self) -> None:
        offered = True
        while offered and not self._closing.is_set():
            server = self._servers.present()
            try:
                offered = server is None or self._hear(server)
            except (*BROKEN, Refused):
                if server is not None:
                    self._servers.lost(server)
            self._closing.wait(LISTEN_DELAY)

    def _hear(self, server: Server) -> bool:
        """Pass on the server's stream until it ends; whether there may be another."""
        session = self._handshake.session(server)
        if session is None or session.id is None:
            return False
        call = Call(self._wire, server)
        try:
            call.send("GET", self._headers(server, session))
            if call.is_stream:
                for text in call.events():
                    self._output.write(text)
            elif call.response.status == http.client.NOT_FOUND:
                self._handshake.lost(session)
            return call.response.status != http.client.METHOD_NOT_ALLOWED
        finally:
            call.finish()

    def _awaited(self, flight: Flight) -> Server | None:
        """The server once it is back; None when nobody waits for it any more."""
        while not self._closing.wait(LISTEN_DELAY) and not flight.cancelled:
            if (server := self._servers.present()) is not None:
                return server
        return None

    def _headers(self, server: Server, session: Session | None) -> dict[str, str]:
        return headers(self._common, server) | (session.headers if session is not None else {})

    def _report(self, flight: Flight, reason: str) -> None:
        if not flight.cancelled:
            say(reason)
            self._output.write(failure(flight.message.id, NO_SERVER, reason))
