"""Texts of problems and errors for shoppers, in English and Italian."""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

Advice: TypeAlias = Literal[
    "correct_form", "wait", "ask_service", "try_later", "already_decided", "other_data", "fix_setup"
]
Param: TypeAlias = int | str | tuple[str, ...] | None


# Templates by code, such as ``amount.range``, or by rule, such as ``range``. Amounts are shown in euros.
_ENGLISH: Mapping[str, str] = {
    "accepted": "This must be accepted.",
    "access_denied": "The service does not accept this shop.",
    "address.comma": "Enter only the name of the street, without commas and without the number.",
    "already_evaluated": "A loan was already requested for this customer.",
    "amount.range": "Enter an amount between {least} and {most} euros.",
    "blank": "This field must not be blank.",
    "choice": "Choose one of the options.",
    "date": "Enter a valid date.",
    "email.format": "Enter a valid e-mail address.",
    "error": "The service has a fault.",
    "fiscal_code.check_letter": "The check letter is wrong: type the fiscal code again.",
    "fiscal_code.format": "Enter the 16 letters and digits of the fiscal code.",
    "mobile_phone.format": "Enter a valid mobile number.",
    "mobile_phone.prefix": "Enter the mobile number without the international prefix.",
    "not_accepted": "This value is not accepted.",
    "postal_code.format": "Enter the five digits of the postal code.",
    "province.format": "Enter the two capital letters of the province, such as RM.",
    "range": "Enter a whole number between {least} and {most}.",
    "required": "This field is required.",
    "salary.type": "Enter a whole number of euros, without cents.",
    "shop_not_allowed": "This shop cannot request loans.",
    "time": "Enter a date without a time.",
    "type": "Enter a text.",
    "user_not_found": "The fiscal code is not known.",
    "yes_no": "Choose yes or no.",
}
_ITALIAN: Mapping[str, str] = {
    "accepted": "È necessario accettare.",
    "access_denied": "Il servizio non accetta questo negozio.",
    "address.comma": "Inserire solo il nome della via, senza virgole e senza numero civico.",
    "already_evaluated": "Per questo cliente è già stato richiesto un finanziamento.",
    "amount.range": "Inserire un importo tra {least} e {most} euro.",
    "blank": "Questo campo non può essere vuoto.",
    "choice": "Scegliere una delle opzioni.",
    "date": "Inserire una data valida.",
    "email.format": "Inserire un indirizzo e-mail valido.",
    "error": "Il servizio ha un guasto.",
    "fiscal_code.check_letter": "Il carattere di controllo è errato: ricontrollare il codice fiscale.",
    "fiscal_code.format": "Inserire le 16 lettere e cifre del codice fiscale.",
    "mobile_phone.format": "Inserire un numero di cellulare valido.",
    "mobile_phone.prefix": "Inserire il numero di cellulare senza il prefisso internazionale.",
    "not_accepted": "Questo valore non è accettato.",
    "postal_code.format": "Inserire le cinque cifre del CAP.",
    "province.format": "Inserire la sigla della provincia in lettere maiuscole, per esempio RM.",
    "range": "Inserire un numero intero tra {least} e {most}.",
    "required": "Questo campo è obbligatorio.",
    "salary.type": "Inserire un numero intero di euro, senza centesimi.",
    "shop_not_allowed": "Questo negozio non può richiedere finanziamenti.",
    "time": "Inserire una data senza ora.",
    "type": "Inserire un testo.",
    "user_not_found": "Il codice fiscale non risulta registrato.",
    "yes_no": "Scegliere sì o no.",
}
TEXTS: Mapping[str, Mapping[str, str]] = {"en": _ENGLISH, "it": _ITALIAN}
# Rules that a form seldom breaks. Their text is that of ``not_accepted``.
RARE_RULES = {
    *("control_characters", "dialect", "digits", "encoding", "format"),
    *("json", "keys", "known", "object", "unknown_field"),
}

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
        "back and enter the first data."
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
        "l'esito, tornare indietro e inserire i primi dati."
    ),
    "try_later": "Non è stato possibile inviare la richiesta. Riprovare tra qualche minuto.",
    "wait": "La richiesta è ancora in valutazione. Controllare di nuovo tra un minuto.",
    "data.already_decided": "I dati sono già stati ricevuti. Non occorre inviarli di nuovo.",
    "data.ask_service": "Non è stato possibile elaborare i dati. La contatteremo noi.",
    "data.fix_setup": "Al momento non è possibile elaborare i dati. La contatteremo noi.",
    "data.try_later": "Non è stato possibile elaborare i dati. Riprovare tra qualche minuto.",
}
_ERRORS: Mapping[str, Mapping[str, str]] = {"en": _ENGLISH_ERRORS, "it": _ITALIAN_ERRORS}


def text_of(code: str, params: Mapping[str, Param], message: str, language: str) -> str:
    """Return the text of a problem, or its message if it has no text.

    Raises:
        ValueError: There are no texts in this language.
    """
    name = _known(language)
    field, _, rule = code.rpartition(".")
    if rule == "type" and "least" in params:
        rule = "range"
    template = TEXTS[name].get(f"{field}.{rule}") or TEXTS[name].get(
        "not_accepted" if rule in RARE_RULES else rule
    )
    if field == "amount":
        params = {key: _euros(value, name) for key, value in params.items() if isinstance(value, int)}
    try:
        return message if template is None else template.format_map(params)
    except KeyError:  # messages of the service do not have all params
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
    if name not in TEXTS:
        raise ValueError(
            "there are no texts in this language: pass 'en' or 'it', or write your own texts for problem.code"
        )
    return name


def _euros(cents: int, language: str) -> str:
    text = f"{cents // 100:,}.{cents % 100:02}"  # a float would overflow or be rounded
    return text.translate(_COMMA) if language == "it" else text


_COMMA = str.maketrans(",.", ".,")
_REGION = re.compile("[-_][A-Za-z]{2}$")
