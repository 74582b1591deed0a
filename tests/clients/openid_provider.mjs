// An OpenID provider (the certified oidc-provider of npm) for the cases: openid_provider.mjs PORT
// REDIRECT_URIS LOGOUT_URI, with the packages in the folder NODE_TOOLS.
//
// Anyone logs in under any name by its development forms. Keys are made at start.
import { generateKeyPairSync } from 'node:crypto';
import { createRequire } from 'node:module';
import path from 'node:path';

const [port, redirects, logout] = process.argv.slice(2);
const modules = createRequire(path.join(process.env.NODE_TOOLS, 'package.json'));
const { default: Provider } = await import(modules.resolve('oidc-provider'));

const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const key = { ...privateKey.export({ format: 'jwk' }), kid: 'one', use: 'sig', alg: 'RS256' };
const issuer = `http://127.0.0.1:${port}`;
const client = (id, more) => ({
  client_id: id,
  redirect_uris: redirects.split(','),
  post_logout_redirect_uris: [logout],
  grant_types: ['authorization_code', 'refresh_token', 'client_credentials'],
  ...more,
});

const provider = new Provider(issuer, {
  clients: [
    client('shop', { client_secret: 'secret-of-shop-secret-of-shop-1234' }),
    client('public', { token_endpoint_auth_method: 'none', grant_types: ['authorization_code', 'refresh_token'] }),
  ],
  jwks: { keys: [key] },
  cookies: { keys: ['a key for cookies of tests'] },
  claims: { openid: ['sub'], email: ['email'] },
  scopes: ['openid', 'email', 'offline_access', 'read', 'write'],
  findAccount: (context, id) => ({ accountId: id, claims: () => ({ sub: id, email: `${id}@a.test` }) }),
  issueRefreshToken: () => true,
  ttl: { AccessToken: 600, ClientCredentials: 600 },
  features: {
    clientCredentials: { enabled: true },
    introspection: { enabled: true },
    // Proofs with a key carry a nonce of the provider.
    dPoP: { enabled: true, nonceSecret: Buffer.alloc(32, 1), requireNonce: () => true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      // The userinfo endpoint takes only tokens that are for no other resource.
      defaultResource: (context) => (context.oidc.body?.grant_type === 'client_credentials' ? 'http://api.test' : undefined),
      useGrantedResource: () => true,
      getResourceServerInfo: (context, resource) => ({
        scope: 'read write',
        audience: resource,
        accessTokenFormat: resource === 'http://opaque.test' ? 'opaque' : 'jwt',
      }),
    },
  },
});
provider.listen(Number(port), '127.0.0.1', () => console.log(`serving ${issuer}`));
