"""Texts of problems and errors for shoppers, in English and Italian."""

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any, Literal, TypeAlias

Advice: TypeAlias = Literal[
    "correct_form", "wait", "ask_service", "try_later", "already_decided", "other_data", "fix_setup"
]
Param: TypeAlias = int | str | tuple[str, ...] | None


# Templates by code, such as ``amount.range``, or by rule, such as ``range``.
_ENGLISH: Mapping[str, str] = {
    "accepted": "This must be accepted.",
    "access_denied": "The service does not accept this shop.",
    "address.comma": "Enter only the name of the street, without commas and without the number.",
    "already_evaluated": "A loan was already requested for this customer.",
    "amount.range": "Enter an amount between {least:0.00} and {most:0.00} euros.",
    "amount.type": "Enter an amount between {least:0.00} and {most:0.00} euros.",
    "blank": "This field must not be blank.",
    "choice": "Choose one of the options.",
    "control_characters": "Remove line breaks and control characters.",
    "date": "Enter a valid date.",
    "dialect": "This field cannot be sent: leave it empty.",
    "digits": "This number has too many digits.",
    "email.format": "Enter a valid e-mail address.",
    "encoding": "Remove the characters that cannot be sent.",
    "error": "The service has a fault.",
    "fiscal_code.check_letter": "The check letter is wrong: type the fiscal code again.",
    "fiscal_code.format": "Enter the 16 letters and digits of the fiscal code.",
    "format": "This value has the wrong form.",
    "instalments.type": "Enter a whole number between {least} and {most}.",
    "json": "This field has a value that cannot be sent.",
    "keys": "This field has a name that cannot be sent.",
    "known": "{member} has a separate field.",
    "mobile_phone.format": "Enter a valid mobile number.",
    "mobile_phone.prefix": "Enter the mobile number without the international prefix.",
    "not_accepted": "This value is not accepted.",
    "object": "These data have the wrong form.",
    "payment_day_of_month.type": "Enter a whole number between {least} and {most}.",
    "postal_code.format": "Enter the five digits of the postal code.",
    "province.format": "Enter the two capital letters of the province, such as RM.",
    "range": "Enter a whole number between {least} and {most}.",
    "required": "This field is required.",
    "salary.type": "Enter a whole number of euros, without cents.",
    "shop_not_allowed": "This shop cannot request loans.",
    "time": "Enter a date without a time.",
    "type": "Enter a text.",
    "unknown_field": "This field is not known.",
    "user_not_found": "The fiscal code is not known.",
    "yes_no": "Choose yes or no.",
}
_ITALIAN: Mapping[str, str] = {
    "accepted": "È necessario accettare.",
    "access_denied": "Il servizio non accetta questo negozio.",
    "address.comma": "Inserire solo il nome della via, senza virgole e senza numero civico.",
    "already_evaluated": "Per questo cliente è già stato richiesto un finanziamento.",
    "amount.range": "Inserire un importo tra {least:0,00} e {most:0,00} euro.",
    "amount.type": "Inserire un importo tra {least:0,00} e {most:0,00} euro.",
    "blank": "Questo campo non può essere vuoto.",
    "choice": "Scegliere una delle opzioni.",
    "control_characters": "Eliminare gli a capo e i caratteri di controllo.",
    "date": "Inserire una data valida.",
    "dialect": "Questo campo non può essere inviato: lasciarlo vuoto.",
    "digits": "Questo numero ha troppe cifre.",
    "email.format": "Inserire un indirizzo e-mail valido.",
    "encoding": "Eliminare i caratteri che non possono essere inviati.",
    "error": "Il servizio ha un guasto.",
    "fiscal_code.check_letter": "Il carattere di controllo è errato: ricontrollare il codice fiscale.",
    "fiscal_code.format": "Inserire le 16 lettere e cifre del codice fiscale.",
    "format": "Il formato di questo valore è errato.",
    "instalments.type": "Inserire un numero intero tra {least} e {most}.",
    "json": "Questo campo ha un valore che non può essere inviato.",
    "keys": "Questo campo ha un nome che non può essere inviato.",
    "known": "{member} ha un campo separato.",
    "mobile_phone.format": "Inserire un numero di cellulare valido.",
    "mobile_phone.prefix": "Inserire il numero di cellulare senza il prefisso internazionale.",
    "not_accepted": "Questo valore non è accettato.",
    "object": "Il formato di questi dati è errato.",
    "payment_day_of_month.type": "Inserire un numero intero tra {least} e {most}.",
    "postal_code.format": "Inserire le cinque cifre del CAP.",
    "province.format": "Inserire la sigla della provincia in lettere maiuscole, per esempio RM.",
    "range": "Inserire un numero intero tra {least} e {most}.",
    "required": "Questo campo è obbligatorio.",
    "salary.type": "Inserire un numero intero di euro, senza centesimi.",
    "shop_not_allowed": "Questo negozio non può richiedere finanziamenti.",
    "time": "Inserire una data senza ora.",
    "type": "Inserire un testo.",
    "unknown_field": "Questo campo non è previsto.",
    "user_not_found": "Il codice fiscale non risulta registrato.",
    "yes_no": "Scegliere sì o no.",
}
CATALOGUES: Mapping[str, Mapping[str, str]] = {"en": _ENGLISH, "it": _ITALIAN}

# Texts of errors, by advice. After "data.": of calls that decide nothing, where they differ.
_ENGLISH_ERRORS: Mapping[str, str] = {
    "already_decided": "Your request has already been decided. We will contact you about the decision.",
    "ask_service": (
        "We have not received the decision on your request yet. Please do not send it again. We will contact "
        "you as soon as we know it."
    ),
    "correct_form": "Please correct your data.",
    "fix_setup": (
        "We are sorry: payment in instalments is not available now. Please choose another payment method."
    ),
    "other_data": (
        "You have already applied with other data, so we did not send this request. To see that decision, go "
        "back and enter the first data. For another order, please choose another payment method."
    ),
    "try_later": "We could not send your request. Please try again in a few minutes.",
    "wait": "Your request is still being decided. Please check again in a minute.",
    "data.already_decided": "We already have your data. You need not send them again.",
    "data.ask_service": "We could not process your data. We will contact you.",
    "data.fix_setup": "We cannot process your data now. We will contact you.",
    "data.try_later": "We could not process your data. Please try again in a few minutes.",
}
_ITALIAN_ERRORS: Mapping[str, str] = {
    "already_decided": "La richiesta è già stata valutata. La contatteremo per comunicarle l'esito.",
    "ask_service": (
        "Non abbiamo ancora ricevuto l'esito della richiesta. Non la invii di nuovo: la contatteremo noi."
    ),
    "correct_form": "Correggere i dati inseriti.",
    "fix_setup": (
        "Ci scusiamo: il pagamento a rate non è disponibile al momento. Scegliere un altro metodo di "
        "pagamento."
    ),
    "other_data": (
        "È già stata inviata una richiesta con altri dati, perciò questa non è stata inviata. Per vedere "
        "l'esito, tornare indietro e inserire i primi dati. Per un altro ordine, scegliere un altro metodo "
        "di pagamento."
    ),
    "try_later": "Non è stato possibile inviare la richiesta. Riprovare tra qualche minuto.",
    "wait": "La richiesta è ancora in valutazione. Controllare di nuovo tra un minuto.",
    "data.already_decided": "I dati sono già stati ricevuti. Non occorre inviarli di nuovo.",
    "data.ask_service": "Non è stato possibile elaborare i dati. La contatteremo noi.",
    "data.fix_setup": "Al momento non è possibile elaborare i dati. La contatteremo noi.",
    "data.try_later": "Non è stato possibile elaborare i dati. Riprovare tra qualche minuto.",
}
_ERRORS: Mapping[str, Mapping[str, str]] = {"en": _ENGLISH_ERRORS, "it": _ITALIAN_ERRORS}


def text_of(
    code: str, params: Mapping[str, Param], message: str, language: str, catalogue: Mapping[str, str] | None
) -> str:
    """Return the text of a problem: from the catalogue, else from the language, else its message.

    Raises:
        ValueError: There are no texts in this language, or a template has a wrong form.
    """
    for templates in (catalogue or {}, CATALOGUES[_known(language)]):
        for key in (code, code.rpartition(".")[2]):
            if (text := _filled(key, templates.get(key), params)) is not None:
                return text
    return message


def advice_text(advice: Advice, operation: str | None, language: str) -> str:
    """Return the text of an error with this advice.

    Raises:
        ValueError: There are no texts in this language.
    """
    texts = _ERRORS[_known(language)]
    concerns_data = operation in ("upload_documents", "complete") or (
        operation == "create_request" and advice == "ask_service"  # no decision is missing
    )
    return texts.get(f"data.{advice}", texts[advice]) if concerns_data else texts[advice]


def _known(language: str) -> str:
    # Browsers send language tags with a region, such as it-IT.
    name = _REGION.sub("", language).lower() if isinstance(language, str) else ""
    if name not in CATALOGUES:
        raise ValueError(
            "there are no texts in this language: pass 'en' or 'it', and texts of your own as the catalogue, "
            'such as problem.text("en", {"amount.range": "..."})'
        )
    return name


def _filled(key: str, template: str | None, params: Mapping[str, Param]) -> str | None:
    """Return a template with its values; None if there is no template, or if a value is missing."""
    if template is None:
        return None
    try:
        return _Template().vformat(template, (), params)
    except KeyError:  # messages of the service do not have all params
        return None
    except (AttributeError, IndexError, TypeError, ValueError):
        raise ValueError(
            f"the template of {key!r} has a wrong form; write placeholders as {{least}}, {{least:0.00}} or "
            "{least:0,00}"
        ) from None


class _Template(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401  (as in the base class)
        match format_spec:
            case "0.00":
                return _euros(value)
            case "0,00":
                return _euros(value).translate(_COMMA)
        if isinstance(value, list | tuple):  # a list if the params were JSON
            value = ", ".join(value)
        return str(super().format_field(value, format_spec))


def _euros(cents: int) -> str:
    return f"{cents // 100:,}.{cents % 100:02}"  # a float would overflow or be rounded


_COMMA = str.maketrans(",.", ".,")
_REGION = re.compile("[-_][A-Za-z]{2}$")
