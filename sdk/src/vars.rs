//! Variables of an exchange, by NGINX's and APISIX's names.
