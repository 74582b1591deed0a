// http_cache_tests.mjs BASE PORT LIST [FOLDER]: runs the public suite http-cache-tests through the gateway at BASE, with
// the suite's own server on PORT behind it. FOLDER is the suite's package, or a checkout of its repository.
//
// LIST has the tests that pass, one `KIND ID` a line. The run fails if one of them does not pass, or if any required
// test fails without a line `fails KIND ID`. A test whose preparation fails, or that of a test it depends on, is not
// counted as failed.
// With LIST `-` the lines of such a file are printed.
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const [base, port, list, given] = process.argv.slice(2)
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..')
const folder = given ?? path.join(root, 'target/node/node_modules/http-cache-tests')
const isCheckout = fs.existsSync(path.join(folder, 'test-engine'))
const engine = isCheckout ? path.join(folder, 'test-engine') : folder
const load = (...parts) => import(pathToFileURL(path.join(...parts)))

// The suite reads its settings where npm puts them.
const settings = { protocol: 'http', port, base, id: '', pidfile: '/dev/null' }
for (const [name, value] of Object.entries(settings)) process.env[`npm_config_${name}`] = value
console.log = () => {}
console.error = () => {}

await load(engine, 'server/server.mjs')
const suites = (await load(folder, 'tests/index.mjs')).default
const runner = await load(engine, 'client/runner.mjs')
// All at once: most of the time is pauses.
if (isCheckout) {
  await runner.runTests(suites, false, base, 1000)
} else {
  const fetch = (await load(folder, '../node-fetch/lib/index.js')).default
  await runner.runTests(suites, fetch, false, base, 1000)
}

const { makeCacheTest, testResults: results } = await load(engine, 'client/test.mjs')
const tests = new Map(suites.flatMap(suite => suite.tests.map(test => [test.id, test])))
const kind = id => tests.get(id).kind ?? 'required'

function outcome (id) {
  const result = results[id]
  const depends = tests.get(id)?.depends_on ?? []
  if (result === undefined || depends.some(other => outcome(other) !== 'passed')) return 'not prepared'
  if (result === true) return 'passed'
  return result[0] === 'Setup' ? 'not prepared' : 'failed'
}

// Responses are fresh for a few seconds, which a busy machine may let pass: these are run once more, by themselves.
const failed = Object.keys(results).filter(id => outcome(id) === 'failed')
failed.forEach(id => delete results[id])
await Promise.all(failed.map(id => makeCacheTest(tests.get(id))))

const counted = Object.keys(results).sort().filter(id => kind(id) !== 'check')
const line = id => `${kind(id)} ${id}`
const passed = counted.filter(id => outcome(id) === 'passed').map(line)
const out = []
if (list === '-') {
  out.push(...passed)
} else {
  const lines = fs.readFileSync(list, 'utf8').split('\n').filter(text => text !== '' && !text.startsWith('#'))
  const expected = lines.filter(text => !text.startsWith('fails '))
  const failing = counted.filter(id => kind(id) === 'required' && outcome(id) === 'failed').map(line)
  const wrong = failing.filter(text => !lines.includes(`fails ${text}`))
  wrong.push(...expected.filter(text => !passed.includes(text) && !wrong.includes(text)))
  for (const text of wrong) {
    const result = results[text.split(' ')[1]]
    out.push(`FAILED ${text}: ${Array.isArray(result) ? result[1] : outcome(text.split(' ')[1])}`)
  }
  for (const text of passed.filter(text => !expected.includes(text))) out.push(`passes, not listed: ${text}`)
  for (const which of ['required', 'optimal']) {
    const all = counted.filter(id => kind(id) === which)
    const count = state => all.filter(id => outcome(id) === state).length
    out.push(`${which}: ${count('passed')} passed, ${count('failed')} failed, ${count('not prepared')} not prepared`)
  }
  process.exitCode = wrong.length === 0 ? 0 : 1
}
process.stdout.write(out.join('\n') + '\n', () => process.exit())
